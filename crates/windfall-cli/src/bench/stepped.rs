//! The instructions of a child process, counted one by one.
//!
//! **Purpose.** How many instructions a child runs between two marks, by single steps of the processor. That needs no
//! tool, and unlike one that simulates a processor it leaves the child all of the address space: a pool of hundreds of
//! gigabytes can be reserved.
//!
//! **Invariants.** Only the thread that marks is stepped: the child's main thread. What a mark itself takes is measured
//! by the child's first pair of marks, with nothing between, and taken off. A child does not outlive us.
//!
//! **May touch.** Child processes.

use std::{
    io, mem,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    ptr,
};

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use crate::{
    child::Killed,
    failure::{Failure, Result},
};

/// The signal that is a mark. The child does not get to see it.
const MARK: i32 = libc::SIGUSR1;

/// Marks, in the child, where counting begins or ends.
pub fn mark() {
    // SAFETY: it sends a signal to the calling thread, and touches no memory of ours.
    unsafe { libc::raise(MARK) };
}

/// One of the requests that take no address and at most a number.
fn ask(request: libc::c_uint, pid: Pid, number: libc::c_long) -> io::Result<()> {
    // SAFETY: these requests read and write no memory of ours; the tracee is our own child.
    let done = unsafe { libc::ptrace(request, pid.as_raw_pid(), ptr::null_mut::<libc::c_void>(), number) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs a child; the instructions between each pair of its marks but the first, which has nothing between.
pub fn run(command: &mut Command) -> Result<Vec<u64>> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let trace_me = || {
        // SAFETY: this request has no further argument.
        let done = unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec it calls one system call, and allocates nothing.
    let child = unsafe { command.pre_exec(trace_me) }.spawn();
    let mut child = Killed(child.map_err(|e| Failure::said(format!("a child cannot be stepped: {e}")))?);
    let mut said = child.0.stderr.take().ok_or_else(|| Failure::said("the child has no output"))?;
    let pid = Pid::from_child(&child.0);

    let mut counts: Vec<u64> = Vec::new();
    let (mut begun, mut inside) = (false, false);
    let ended = loop {
        let Some((_, status)) = waitpid(Some(pid), WaitOptions::empty()).map_err(io::Error::from)? else {
            continue;
        };
        let Some(signal) = status.stopping_signal() else { break status };
        let mut pass_on = 0;
        match (signal, counts.last_mut()) {
            (libc::SIGTRAP, Some(count)) if inside => *count += 1,
            (libc::SIGTRAP, _) if !begun => {
                // The child stands at its first instruction.
                ask(libc::PTRACE_SETOPTIONS, pid, libc::PTRACE_O_EXITKILL.into())?;
                begun = true;
            }
            (MARK, _) => {
                inside = !inside;
                if inside {
                    counts.push(0);
                }
            }
            _ => pass_on = signal.into(),
        }
        ask(if inside { libc::PTRACE_SINGLESTEP } else { libc::PTRACE_CONT }, pid, pass_on)?;
    };
    // It has been waited for: its number may belong to another process by now.
    mem::forget(child);
    told(ended, &mut said)?;
    let Some((empty, counts)) = counts.split_first() else {
        return Err(Failure::said("the child has set no mark"));
    };
    Ok(counts.iter().map(|count| count.saturating_sub(*empty)).collect())
}

/// A failure if the child has failed.
fn told(ended: WaitStatus, said: &mut impl io::Read) -> Result<()> {
    if ended.exit_status() == Some(0) {
        return Ok(());
    }
    let mut text = Vec::new();
    said.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().last().unwrap_or_default();
    let how = ended.terminating_signal().map_or_else(
        || format!("exit code {}", ended.exit_status().unwrap_or_default()),
        |signal| format!("signal {signal}"),
    );
    Err(Failure::said(format!("the benchmark failed while it was stepped ({how}): {last}")))
}
