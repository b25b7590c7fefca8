//! A printer: what is on the paper is what was sent.

use crate::driver::enumerate::Enumerated;
use crate::driver::host::Pipe;
use crate::host::Guest;
use crate::job::{Job, Site, Trouble};
use crate::media::Paper;

const MOST_BYTES: u64 = 3_000;

pub struct Clerk {
    paper: Paper,
    output: Option<Pipe>,
    printed: Vec<u8>,
    /// What is on its way.
    page: Vec<u8>,
}

impl Clerk {
    pub fn new(paper: Paper) -> Self {
        Self { paper, output: None, printed: Vec::new(), page: Vec::new() }
    }
}

impl<G: Guest> Job<G> for Clerk {
    fn bind(&mut self, _host: &mut G, _site: &Site, found: &Enumerated) -> Result<(), Trouble> {
        let endpoints = &found.interfaces[0].endpoints;
        let output = endpoints.iter().find(|endpoint| !endpoint.address.is_in());
        self.output = Some(found.pipe(output.expect("it is a printer")));
        Ok(())
    }

    fn work(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble> {
        let output = self.output.expect("it is bound");
        let len = 1 + site.below(MOST_BYTES) as usize;
        self.page = site.bytes(len);
        host.send(&output, &self.page)?;
        self.printed.append(&mut self.page);
        assert!(*self.paper.0.lock().unwrap() == self.printed, "every byte, once");
        Ok(())
    }

    fn settle(&mut self, _site: &Site) {
        let paper = self.paper.0.lock().unwrap();
        let page = paper.strip_prefix(&self.printed[..]).expect("what was printed stays");
        assert!(self.page.starts_with(page), "more is on the paper than the start of a page");
        self.printed.clone_from(&paper);
        self.page.clear();
    }
}
