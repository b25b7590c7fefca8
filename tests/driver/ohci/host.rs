//! The driver at its user's service: requests and pipes.

use super::*;

impl<C: HostController<GuestMemoryMmap>> OhciDriver<C> {
    fn receive_from(
        &mut self,
        key: (u8, u8),
        len: u32,
        millis: u64,
    ) -> Result<Vec<u8>, TransferError> {
        let pieces = self.pieces(td::IN, len);
        let moved: u32 = self.transfer(key, &pieces, millis)?.iter().sum();
        Ok(self.machine.bytes(self.buffer, moved as usize))
    }
}

impl<C: HostController<GuestMemoryMmap>> HostDriver for OhciDriver<C> {
    fn ports(&mut self) -> usize {
        (self.machine.read32(reg::RH_DESCRIPTOR_A) & 0xff) as usize
    }

    fn connected(&mut self, port: usize) -> bool {
        self.machine.read32(reg::RH_PORT_STATUS + 4 * port as u64) & port::CCS != 0
    }

    fn reset_port(&mut self, port: usize) -> Option<Speed> {
        let register = reg::RH_PORT_STATUS + 4 * port as u64;
        self.machine.write32(register, port::PRS);
        self.machine.wait_millis(20, |m| m.read32(register) & port::PRS == 0);
        let status = self.machine.read32(register);
        self.machine.write32(register, port::PRSC | port::PESC);
        let enabled = status & (port::CCS | port::PES) == port::CCS | port::PES;
        enabled.then_some(if status & port::LSDA != 0 { Speed::Low } else { Speed::Full })
    }

    fn control(
        &mut self,
        device: &Device,
        setup: SetupPacket,
        data: &[u8],
    ) -> Result<Vec<u8>, TransferError> {
        let pipe = Pipe::control(device);
        let key = self.endpoint(&pipe, ListKind::Control);
        let packet = setup_bytes(&setup);
        let buffer = self.buffer;
        let inward = setup.bm_request_type & 0x80 != 0;
        self.machine.fill(buffer, &packet);
        self.machine.fill(buffer + 8, data);
        let len = if inward { setup.length().into() } else { data.len() as u32 };
        assert!(len <= TD_BYTES, "one TD for the data stage");
        let piece = |control, offset, len| Piece { control, buffer: buffer + offset, len };
        let direction = if inward { td::IN } else { td::OUT };
        let status = if inward && len != 0 { td::OUT } else { td::IN };
        let mut pieces = vec![piece(td::SETUP | td::DATA0, 0, 8)];
        if len != 0 {
            pieces.push(piece(direction | td::DATA1 | td::ROUNDING, 8, len));
        }
        pieces.push(piece(status | td::DATA1, 0, 0));
        let moved = self.transfer(key, &pieces, PATIENCE_MILLIS)?;
        let answered = if inward && len != 0 { moved[1] } else { 0 };
        Ok(self.machine.bytes(buffer + 8, answered as usize))
    }

    fn send(&mut self, pipe: &Pipe, data: &[u8]) -> Result<(), TransferError> {
        let list = match pipe.interval {
            0 => ListKind::Bulk,
            interval => ListKind::Periodic { interval: frames(interval) },
        };
        let mut rest = data;
        loop {
            let key = self.endpoint(pipe, list);
            let (now, later) = rest.split_at(rest.len().min(BUFFER as usize));
            self.machine.fill(self.buffer, now);
            let pieces = self.pieces(td::OUT, now.len() as u32);
            let sent = self.transfer(key, &pieces, PATIENCE_MILLIS);
            assert!(self.machine.bytes(self.buffer, now.len()) == now, "what is sent stays");
            sent?;
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, pipe: &Pipe, len: usize) -> Result<Vec<u8>, TransferError> {
        let mut data = Vec::new();
        loop {
            let key = self.endpoint(pipe, ListKind::Bulk);
            let asked = (len - data.len()).min(BUFFER as usize);
            let part = self.receive_from(key, asked as u32, PATIENCE_MILLIS)?;
            data.extend_from_slice(&part);
            if part.len() < asked || data.len() == len {
                return Ok(data);
            }
        }
    }

    fn poll(&mut self, pipe: &Pipe, len: usize, millis: u64) -> Result<Vec<u8>, TransferError> {
        let list = ListKind::Periodic { interval: frames(pipe.interval) };
        let key = self.endpoint(pipe, list);
        self.receive_from(key, len as u32, millis)
    }

    fn reset_toggle(&mut self, pipe: &Pipe) {
        let key = (pipe.device.address, pipe.endpoint.byte());
        if let Some(endpoint) = self.endpoints.get(&key) {
            let head = self.machine.load(endpoint.ed + 8);
            self.machine.store(endpoint.ed + 8, head & !ed::CARRY);
        }
    }

    fn sleep_millis(&mut self, millis: u64) {
        let until = self.machine.now.after_millis(millis);
        self.wait(until, |_| false);
    }
}

impl<C: HostController<GuestMemoryMmap>> Background for OhciDriver<C> {
    type Flight = (Flight, u32);

    fn begin_receive(&mut self, pipe: &Pipe) -> Self::Flight {
        let list = match pipe.interval {
            0 => ListKind::Bulk,
            interval => ListKind::Periodic { interval: frames(interval) },
        };
        let key = self.endpoint(pipe, list);
        let len = pipe.max_packet.into();
        let buffer = self.machine.alloc(len, 64);
        let piece = Piece { control: td::IN | td::ROUNDING, buffer, len };
        let tds = self.submit(key, &[piece]);
        (Flight { key, tds }, buffer)
    }

    fn has_ended(&mut self, flight: &Self::Flight) -> bool {
        self.has_landed(&flight.0)
    }

    fn finish(&mut self, (flight, buffer): Self::Flight) -> Result<Vec<u8>, TransferError> {
        let moved: u32 = self.end(flight)?.iter().sum();
        Ok(self.machine.bytes(buffer, moved as usize))
    }
}
