//! The system calls that a server makes once it serves. Whoever makes another is not the server any more:
//! the kernel ends the process, and its log says which call it was.
//!
//! The list has each call under the names that C libraries know it by, old and new: which one they make is
//! theirs to choose.

use std::collections::BTreeMap;

use libc::{c_long, c_ulong};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

/// Calls that are harmless whatever their arguments are. The kernel remembers for each that it is allowed
/// and does not ask again, so the ones a controller's loop lives on cost nothing.
const ALWAYS: &[c_long] = &[
    // The loop: its client, interrupts, doorbells, and sleep.
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_ppoll,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_close,
    // Images, captures, snapshots; their paths are the business of `files`.
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_flock,
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    // Memory; what may be executed is in `conditional`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads: their beginning is in `conditional`.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals that come, and the stack their handlers run on.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time, where the kernel's page for it does not do.
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    // What a library asks for when it makes hash tables.
    libc::SYS_getrandom,
];

/// The same under the names that only x86-64 still has.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_poll,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];

/// Makes threads, but never processes or namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Has the kernel end this process if it, or a thread it starts from now on, makes any other call; says
/// what it lacks for that.
pub fn confine() -> Option<String> {
    let lacking = |error: &dyn std::fmt::Display| {
        format!("this kernel filters no system calls ({error}): all are allowed")
    };
    let programs = match programs() {
        Ok(programs) => programs,
        Err(error) => return Some(lacking(&error)),
    };
    programs.iter().find_map(|program| apply_filter(program).err()).map(|error| lacking(&error))
}

/// Both filters; the kernel does what the stricter one says.
fn programs() -> Result<[BpfProgram; 2], BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let mut allowed: BTreeMap<c_long, Vec<SeccompRule>> = conditional()?;
    allowed.extend(ALWAYS.iter().chain(OLD).map(|call| (*call, Vec::new())));
    // Its flags are in memory, where no filter can look: a C library that hears of no such call makes
    // the old one.
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    allowed.extend(absent.clone());
    let (allow, kill) = (SeccompAction::Allow, SeccompAction::KillProcess);
    let no_such_call = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    Ok([
        SeccompFilter::new(absent, SeccompAction::Allow, no_such_call, arch)?.try_into()?,
        SeccompFilter::new(allowed, kill, allow, arch)?.try_into()?,
    ])
}

/// Calls that are allowed with certain arguments.
fn conditional() -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    let mut calls = BTreeMap::new();
    // Nothing that is written can be executed.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        calls.insert(call, vec![masked(2, libc::PROT_EXEC as u64, 0)?]);
    }
    let thread = libc::CLONE_THREAD as u64;
    calls.insert(libc::SYS_clone, vec![masked(0, thread | NAMESPACES as u64, thread)?]);
    // Non-blocking sockets, the sectors of a block device, is it a terminal?
    calls.insert(libc::SYS_ioctl, one_of(1, &[libc::FIONBIO, BLKSSZGET, libc::TCGETS])?);
    let commands =
        [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];
    calls.insert(libc::SYS_fcntl, one_of(1, &commands.map(|command| command as u64))?);
    // A thread names itself and its stack; where is the kernel's page for the time?
    let options = [libc::PR_SET_NAME, libc::PR_SET_VMA, PR_GET_AUXV];
    calls.insert(libc::SYS_prctl, one_of(0, &options.map(|option| option as u64))?);
    // A thread takes the lowest priority there is, and gives it to nobody else.
    let idle = vec![is(0, 0)?, is(1, libc::SCHED_IDLE as u64)?];
    calls.insert(libc::SYS_sched_setscheduler, vec![SeccompRule::new(idle)?]);
    // How large a stack is, of this process.
    calls.insert(libc::SYS_prlimit64, one_of(0, &[0])?);
    // Aborting.
    calls.insert(libc::SYS_tgkill, one_of(0, &[std::process::id().into()])?);
    Ok(calls)
}

/// Of Linux 6.4, "AUXV" in ASCII. Without it the same is read from a file, which is out of reach.
const PR_GET_AUXV: i32 = 0x4155_5856;

/// `_IO(0x12, 104)`.
const BLKSSZGET: c_ulong = 0x1268;

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    let compare = SeccompCmpOp::MaskedEq(mask);
    SeccompRule::new(vec![SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Qword,
        compare,
        value,
    )?])
}

fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    values.iter().map(|value| SeccompRule::new(vec![is(argument, *value)?])).collect()
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}
