//! The socket that takes [`input`](crate::input) lines: each is answered with `ok` or `error: ...`.

use crate::input::Inputs;
use crate::lines::Answer;

impl Answer for Inputs {
    const WHAT: &'static str = "input";
    /// Three times what any line needs.
    const LONGEST: u64 = 256;

    fn answer(&self, line: &str) -> String {
        match self.carry_out(line) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("error: {error}"),
        }
    }

    fn too_long(&self) -> String {
        "error: the line is too long".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::tests::conversation;

    #[test]
    fn every_line_has_one_answer() {
        let text = conversation(&Inputs::default(), b"tap kbd a\nwhat\nmove t 1 2");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], "error: there is no keyboard with id \"kbd\"");
        assert!(lines[1].starts_with("error: not understood"));
        assert_eq!(lines[2], "error: there is no tablet with id \"t\"", "the last needs no end");
    }

    #[test]
    fn a_line_without_end_ends_the_connection() {
        let text = conversation(&Inputs::default(), &[b'x'; 1000]);
        assert_eq!(text, "error: the line is too long\n");
    }
}
