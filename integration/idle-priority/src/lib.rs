//! The priority of those who take what nobody else wants.

use std::io;

/// Gives the calling thread Linux's idle priority (`SCHED_IDLE`, sched(7)): it runs only on a processor that
/// has nothing else to do, and any thread that wakes up there takes its place at once. A thread does not need
/// a privilege for that, and may need one to get back.
///
/// # Errors
/// Those of `sched_setscheduler`: a filter of system calls may forbid it.
pub fn take() -> io::Result<()> {
    let unused = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the call only reads the parameter, which outlives it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const unused) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    /// What `/proc` says of the calling thread: the field `policy` of proc(5).
    fn policy() -> String {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The second field is a name, which may have spaces; policy is the 41st.
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.split(' ').nth(41 - 3).unwrap().to_owned()
    }

    #[test]
    fn it_is_the_calling_thread_whose_priority_changes() {
        let before = policy();
        assert_ne!(before, libc::SCHED_IDLE.to_string());
        let inside = std::thread::spawn(|| {
            super::take().unwrap();
            policy()
        });
        assert_eq!(inside.join().unwrap(), libc::SCHED_IDLE.to_string());
        assert_eq!(policy(), before);
    }
}
