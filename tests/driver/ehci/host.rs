//! The driver at its user's service: pipes, and who is reached by which transaction translator.

use super::*;

impl<C: HostController<GuestMemoryMmap>> EhciDriver<C> {
    fn queue_for(&mut self, pipe: &Pipe) -> Queue {
        let key = (pipe.device.address, pipe.endpoint.byte());
        if let Some(queue) = self.queues.get(&key) {
            return *queue;
        }
        let high = pipe.device.speed == Speed::High;
        let (characteristics, capabilities) =
            self.words(&pipe.device, pipe.endpoint.number(), pipe.max_packet & 0x7ff);
        let queue = if pipe.interval == 0 {
            let nak_reload = if high { 4 << 28 } else { 0 };
            let queue = self.queue(characteristics | nak_reload, capabilities | 1 << 30, None);
            self.link(&queue);
            queue
        } else {
            // High speed: 2^(bInterval-1) microframes; below a frame, every one (USB 2.0, 9.6.6).
            // Otherwise frames, rounded down to a power of two.
            let microframes =
                if high { 1u32 << (pipe.interval - 1).min(12) } else { 8 << pipe.interval.ilog2() };
            let period = (microframes / 8).clamp(1, FRAMES / 2);
            let masks = match (high, microframes < 8) {
                (true, true) => 0xff,
                (true, false) => 0x01,
                (false, _) => 0x1c01,
            };
            let mult = u32::from(pipe.max_packet >> 11 & 3) + 1;
            let capabilities = capabilities | mult << 30 | masks;
            let queue = self.queue(characteristics, capabilities, Some(period));
            self.link_periodic(&queue, 0);
            queue
        };
        self.queues.insert(key, queue);
        queue
    }

    /// QH dword 1 and 2 of an endpoint: who it is, and by which translator it is reached.
    fn words(&self, device: &Device, number: u8, max_packet: u16) -> (u32, u32) {
        let speed = match device.speed {
            Speed::High => HIGH_SPEED,
            Speed::Full => 0,
            Speed::Low => LOW_SPEED,
        };
        let characteristics = u32::from(device.address)
            | u32::from(number) << 8
            | speed
            | u32::from(max_packet) << 16;
        let translator = self.translators.get(&device.address);
        let (hub, port) = translator.filter(|_| device.speed != Speed::High).unwrap_or(&(0, 0));
        (characteristics, u32::from(*port) << 23 | u32::from(*hub) << 16)
    }

    /// Learns from a hub's and a device's requests which translator serves whom: the nearest
    /// high-speed hub's, so devices behind a full-speed hub have that hub's own.
    fn note_translator(&mut self, device: &Device, setup: &SetupPacket) {
        let reset_port = (0x23, request::SET_FEATURE, 4);
        if (setup.bm_request_type, setup.b_request, setup.value()) == reset_port {
            let own = (device.address, setup.index() as u8);
            let translator = match device.speed {
                Speed::High => own,
                _ => self.translators.get(&device.address).copied().unwrap_or(own),
            };
            self.translators.insert(0, translator);
        }
        if (setup.bm_request_type, setup.b_request) == (0, request::SET_ADDRESS)
            && let Some(translator) = self.translators.get(&0).copied()
        {
            self.translators.insert(setup.value() as u8, translator);
        }
    }

    /// The queue of endpoint 0. Address and packet size of a linked, idle queue head may change.
    fn control_queue(&mut self, device: &Device) -> Queue {
        let key = (device.address, 0);
        let (characteristics, capabilities) = self.words(device, 0, device.control_packet);
        let kind = if device.speed == Speed::High { 4 << 28 } else { CONTROL };
        let (characteristics, capabilities) =
            (characteristics | DTC | kind, capabilities | 1 << 30);
        match self.queues.get(&key) {
            Some(queue) => {
                let queue = *queue;
                self.machine.store(queue.head + 8, capabilities);
                self.machine.store(queue.head + 4, characteristics);
                queue
            }
            None => {
                let queue = self.queue(characteristics, capabilities, None);
                self.link(&queue);
                self.queues.insert(key, queue);
                queue
            }
        }
    }

    fn receive_some(
        &mut self,
        pipe: &Pipe,
        len: usize,
        millis: u64,
    ) -> Result<Vec<u8>, TransferError> {
        let mut queue = self.queue_for(pipe);
        let buffer = self.scratch(len as u32);
        let mut tds = self.data(Pid::In, buffer, len as u32, u32::from(pipe.max_packet & 0x7ff));
        if let Some(last) = tds.last_mut() {
            last.ioc = true;
        }
        let ended = self.transfer(&mut queue, &tds, millis);
        self.queues.insert((pipe.device.address, pipe.endpoint.byte()), queue);
        let ended = ended?;
        let asked: u32 = tds[..=ended.at].iter().map(|td| td.len).sum();
        Ok(self.machine.bytes(buffer, (asked - token::total(ended.token)) as usize))
    }
}

impl<C: HostController<GuestMemoryMmap>> HostDriver for EhciDriver<C> {
    fn ports(&mut self) -> usize {
        (self.machine.read32(4) & 0xf) as usize
    }

    fn connected(&mut self, port: usize) -> bool {
        self.port(port) & port::CONNECT != 0
    }

    fn reset_port(&mut self, n: usize) -> Option<Speed> {
        let status = self.port(n);
        self.machine.write32(reg::PORTSC + 4 * n as u64, status);
        if status & port::CONNECT == 0 {
            return None;
        }
        if status & port::LINE == port::LINE_K {
            self.set_port(n, port::OWNER, 0);
            return None;
        }
        self.set_port(n, port::RESET, port::ENABLED);
        self.machine.advance_millis(50);
        self.set_port(n, 0, port::RESET);
        let done = self.wait(1, |m| m.read32(reg::PORTSC + 4 * n as u64) & port::RESET == 0);
        assert!(done, "the reset ends");
        let status = self.port(n);
        if status & port::CONNECT == 0 || status & port::CONNECT_CHANGE != 0 {
            // It went, and what may be there now was not reset.
            return None;
        }
        if status & port::ENABLED == 0 {
            // Not a high-speed device: the companion's.
            self.set_port(n, port::OWNER, 0);
            return None;
        }
        self.machine.advance_millis(10);
        Some(Speed::High)
    }

    fn control(
        &mut self,
        device: &Device,
        setup: SetupPacket,
        data: &[u8],
    ) -> Result<Vec<u8>, TransferError> {
        self.note_translator(device, &setup);
        let mut queue = self.control_queue(device);
        let len = u32::from(setup.length());
        let packet = self.scratch(64 + len);
        self.machine.fill(packet, &setup_bytes(&setup));
        let reads = setup.direction() == Direction::In && len != 0;
        let mut tds = vec![Td::new(Pid::Setup, packet, 8)];
        let buffer = packet + 64;
        if len != 0 {
            self.machine.fill(buffer, &data[..data.len().min(len as usize)]);
            let pid = if reads { Pid::In } else { Pid::Out };
            tds.push(Td::new(pid, buffer, len).toggle(true));
        }
        let status = if reads { Pid::Out } else { Pid::In };
        tds.push(Td::new(status, 0, 0).toggle(true).ioc());
        let qtds = self.submit(&mut queue, &tds);
        let mut done = false;
        self.wait(PATIENCE_MILLIS, |m| {
            let halted = qtds.iter().any(|q| m.load(q + 8) & token::HALTED != 0);
            done = qtds.iter().all(|q| m.load(q + 8) & token::ACTIVE == 0);
            halted || done
        });
        let tokens: Vec<u32> = qtds.iter().map(|q| self.machine.load(q + 8)).collect();
        let error = tokens.iter().find_map(|t| self.error(*t));
        if error.is_some() || !done {
            self.unlink(&queue);
            self.restart(&queue, queue.dummy);
            self.link(&queue);
        }
        for (td, qtd) in tds.iter().zip(&qtds) {
            self.machine.lent.take_back(qtd + 8);
            self.machine.lent.take_back(td.buffer);
        }
        self.free.extend(qtds);
        self.queues.insert((device.address, 0), queue);
        match error {
            Some(error) => Err(error),
            None if !done => Err(TransferError::TimedOut),
            None if reads => {
                let received = len - token::total(tokens[1]);
                Ok(self.machine.bytes(buffer, received as usize))
            }
            None => Ok(Vec::new()),
        }
    }

    fn send(&mut self, pipe: &Pipe, data: &[u8]) -> Result<(), TransferError> {
        let mut queue = self.queue_for(pipe);
        let len = data.len() as u32;
        let buffer = self.scratch(len);
        self.machine.fill(buffer, data);
        let mut tds = self.data(Pid::Out, buffer, len, u32::from(pipe.max_packet & 0x7ff));
        if let Some(last) = tds.last_mut() {
            last.ioc = true;
        }
        let ended = self.transfer(&mut queue, &tds, PATIENCE_MILLIS);
        self.queues.insert((pipe.device.address, pipe.endpoint.byte()), queue);
        assert!(self.machine.bytes(buffer, data.len()) == data, "what is sent stays");
        ended.map(|_| ())
    }

    fn receive(&mut self, pipe: &Pipe, len: usize) -> Result<Vec<u8>, TransferError> {
        self.receive_some(pipe, len, PATIENCE_MILLIS)
    }

    fn poll(&mut self, pipe: &Pipe, len: usize, millis: u64) -> Result<Vec<u8>, TransferError> {
        self.receive_some(pipe, len, millis)
    }

    fn reset_toggle(&mut self, pipe: &Pipe) {
        let key = (pipe.device.address, pipe.endpoint.byte());
        if let Some(queue) = self.queues.get(&key) {
            let at = queue.head + 0x18;
            let kept = self.machine.load(at) & !token::TOGGLE;
            self.machine.store(at, kept);
        }
    }

    fn sleep_millis(&mut self, millis: u64) {
        self.machine.advance_millis(millis);
        self.service();
    }
}

impl<C: HostController<GuestMemoryMmap>> Background for EhciDriver<C> {
    type Flight = (Queue, Td, Vec<u32>);

    fn begin_receive(&mut self, pipe: &Pipe) -> Self::Flight {
        let mut queue = self.queue_for(pipe);
        let len = u32::from(pipe.max_packet & 0x7ff);
        let td = Td::new(Pid::In, self.machine.alloc(len, 64), len).ioc();
        let qtds = self.submit(&mut queue, &[td]);
        self.queues.insert((pipe.device.address, pipe.endpoint.byte()), queue);
        (queue, td, qtds)
    }

    fn has_ended(&mut self, (_, _, qtds): &Self::Flight) -> bool {
        ended(&self.machine, qtds).is_some()
    }

    fn finish(&mut self, (queue, td, qtds): Self::Flight) -> Result<Vec<u8>, TransferError> {
        let end = self.end(&queue, &[td], qtds)?;
        Ok(self.machine.bytes(td.buffer, (td.len - token::total(end.token)) as usize))
    }
}
