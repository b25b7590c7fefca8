//! Keyboards and tablets: every event comes once, until the plug is pulled, and waiting for one ends then.

use vm_usb::devices::hid::{Key, Keyboard, KeyboardHandle, Tablet, TabletHandle};
use vm_usb::usb::{Speed, UsbDevice};

use crate::driver::dice::Dice;
use crate::driver::enumerate::Enumerated;
use crate::driver::hid::HidDriver;
use crate::driver::host::{HostDriver, TransferError};
use crate::job::{Job, tell};

/// Longer than any hand waits: who waits so long for an event is told that the device is gone.
const LONG: u64 = 5_000;

/// What a device does with its user, and what its host is to hear.
trait User {
    fn device(&mut self, speed: Speed) -> Box<dyn UsbDevice>;

    /// Does something, and says which reports tell of it; `None` if nobody listens any more.
    fn act(&mut self, dice: &mut Dice) -> Option<Vec<Vec<u8>>>;
}

struct Input<U> {
    dice: Dice,
    user: U,
    driver: Option<HidDriver>,
}

impl<U: User> Input<U> {
    fn new(seed: u64, user: U) -> Self {
        Self { dice: Dice::new(seed), user, driver: None }
    }
}

impl<U: User> Job for Input<U> {
    fn device(&mut self, speed: Speed) -> Box<dyn UsbDevice> {
        self.user.device(speed)
    }

    fn bind(&mut self, host: &mut dyn HostDriver, found: &Enumerated) -> Result<(), TransferError> {
        let driver = HidDriver::bind(found).expect("it takes input");
        driver.set_idle(host, 0)?;
        self.driver = Some(driver);
        Ok(())
    }

    fn work(&mut self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        let driver = self.driver.as_ref().expect("it is bound");
        match self.dice.below(8) {
            // Nothing happens, so nothing comes, but for the plug being pulled.
            0 => {
                let report = driver.report(host, LONG);
                assert_eq!(report, Err(TransferError::NoAnswer), "nobody did anything");
                report.map(drop)
            }
            _ => {
                let reports = self.user.act(&mut self.dice).unwrap_or_else(|| vec![vec![]]);
                for expected in reports {
                    assert_eq!(
                        driver.report(host, LONG)?,
                        expected,
                        "an event was lost or doubled"
                    );
                }
                Ok(())
            }
        }
    }

    fn check(&mut self) {}
}

#[derive(Default)]
struct Typist(Option<KeyboardHandle>);

impl User for Typist {
    fn device(&mut self, speed: Speed) -> Box<dyn UsbDevice> {
        let keyboard = Keyboard::new(speed);
        self.0 = Some(keyboard.handle());
        Box::new(keyboard)
    }

    fn act(&mut self, dice: &mut Dice) -> Option<Vec<Vec<u8>>> {
        let keys = self.0.as_ref().expect("there is one");
        let letter = char::from(b'a' + dice.below(26) as u8);
        let key: Key = letter.to_string().parse().unwrap();
        keys.press(key).ok()?;
        keys.release(key);
        let pressed = vec![0, 0, key.usage(), 0, 0, 0, 0, 0];
        Some(vec![pressed, vec![0; 8]])
    }
}

#[derive(Default)]
struct Pointing(Option<TabletHandle>);

impl User for Pointing {
    fn device(&mut self, speed: Speed) -> Box<dyn UsbDevice> {
        let tablet = Tablet::new(speed);
        self.0 = Some(tablet.handle());
        Box::new(tablet)
    }

    fn act(&mut self, dice: &mut Dice) -> Option<Vec<Vec<u8>>> {
        let pointer = self.0.as_ref().expect("there is one");
        // Never where it is already, which is nothing to tell of.
        let [x, y] = [(); 2].map(|()| 1 + dice.below(u64::from(Tablet::MAX)) as u16);
        pointer.move_to(x, y).ok()?;
        let ([x0, x1], [y0, y1]) = (x.to_le_bytes(), y.to_le_bytes());
        Some(vec![vec![0, x0, x1, y0, y1, 0, 0]])
    }
}

#[test]
fn a_keyboard_is_pulled_out_while_somebody_types() {
    tell(|seed| Input::new(seed, Typist::default()));
}

#[test]
fn a_tablet_is_pulled_out_while_somebody_moves() {
    tell(|seed| Input::new(seed, Pointing::default()));
}
