//! The instructions and the system calls of a child process, counted one by one.
//!
//! **Purpose.** Counts the instructions that a child runs between two marks, by single-stepping, and the system calls
//! between two other marks. This needs no tool. Unlike a simulated processor, it leaves the child all of the address
//! space, so that a pool of hundreds of gigabytes can be reserved.
//!
//! **Invariants.** The cost of a mark is measured by the child's first pair of marks of each kind, with nothing
//! between, and is subtracted (test: `the_first_pair_of_marks_is_subtracted`). An instruction that repeats itself, such
//! as a string copy on x86-64, takes one step per iteration and counts once (test:
//! `an_instruction_that_repeats_itself_counts_once`). A child is killed when this process ends (test:
//! `a_child_ends_with_the_process_that_traces_it`).
//!
//! **Method.** Only the thread that sets marks is traced: the child's main thread. Outside its marks it runs at full
//! speed.

#[cfg(target_arch = "x86_64")]
use core::ops::Range;
use std::{
    collections::BTreeMap,
    fs, io, mem,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    ptr,
};

use rustix::{
    process::{Pid, WaitOptions, WaitStatus, waitpid},
    thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

use crate::KillOnDrop;

/// The kind of event that is counted between marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Instructions in user space.
    Instructions,
    /// System calls.
    SystemCalls,
}

impl Count {
    /// Returns the signal of a mark. It is not delivered to the child.
    fn signal(self) -> i32 {
        match self {
            Self::Instructions => libc::SIGUSR1,
            Self::SystemCalls => libc::SIGUSR2,
        }
    }

    fn of(signal: i32) -> Option<Self> {
        [Self::Instructions, Self::SystemCalls].into_iter().find(|count| count.signal() == signal)
    }
}

/// Marks, in the child, the start or the end of counting.
pub fn mark(count: Count) {
    // SAFETY: this sends a signal to the calling thread, and touches no memory of this process.
    unsafe { libc::raise(count.signal()) };
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// The number of the system call.
    pub number: u64,
    /// Whether it wakes other threads, as a futex call can.
    pub is_wake: bool,
}

/// System calls, with the count of each.
pub type SystemCalls = BTreeMap<Call, u64>;

/// The result of tracing a child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The instructions between each pair of marks.
    pub instructions: Vec<u64>,
    /// The indirect calls among them to code of the program itself: the target is in a register, or in memory at an
    /// address in a register, as for a trait object. Only counted by [`run_counting_calls`], and on x86-64; empty
    /// elsewhere.
    pub indirect_calls: Vec<u64>,
    /// The system calls between each pair of marks.
    pub system_calls: Vec<SystemCalls>,
    /// The standard output of the child.
    pub answer: String,
}

impl Call {
    fn of(number: u64, arguments: [u64; 6]) -> Self {
        // The mask removes the flags for the kind of futex and of clock.
        let command = arguments[1] & u64::from(libc::FUTEX_CMD_MASK.cast_unsigned());
        let wakes = [libc::FUTEX_WAKE, libc::FUTEX_WAKE_OP, libc::FUTEX_WAKE_BITSET];
        let is_wake =
            is(number, libc::SYS_futex) && wakes.iter().any(|&wake| u64::try_from(wake) == Ok(command));
        Self { number, is_wake }
    }

    /// Returns whether it writes or syncs an open file.
    pub fn is_write_or_sync(self) -> bool {
        let writes = [
            libc::SYS_write,
            libc::SYS_pwrite64,
            libc::SYS_writev,
            libc::SYS_pwritev,
            libc::SYS_pwritev2,
            libc::SYS_fdatasync,
        ];
        writes.iter().any(|&write| is(self.number, write))
    }
}

/// Returns whether a system call has this number.
fn is(number: u64, known: libc::c_long) -> bool {
    u64::try_from(known) == Ok(number)
}

/// Issues one of the ptrace requests that take no address and at most a number.
fn ptrace_request(request: libc::c_uint, pid: Pid, number: libc::c_long) -> io::Result<()> {
    // SAFETY: these requests read and write no memory of this process; the tracee is its own child.
    let done = unsafe { libc::ptrace(request, pid.as_raw_pid(), ptr::null_mut::<libc::c_void>(), number) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the address of the child's next instruction.
#[cfg(target_arch = "x86_64")]
fn instruction_address(pid: Pid) -> io::Result<u64> {
    let offset = mem::offset_of!(libc::user, regs) + mem::offset_of!(libc::user_regs_struct, rip);
    // SAFETY: the request reads a register of the tracee, a child of this process, and writes no memory of this
    // process.
    let address = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, pid.as_raw_pid(), offset, 0) };
    // No instruction begins at the last address.
    if address == -1 { Err(io::Error::last_os_error()) } else { Ok(address.cast_unsigned()) }
}

/// Returns whether the child's next instruction is an indirect call.
#[cfg(target_arch = "x86_64")]
fn is_before_indirect_call(pid: Pid, address: u64) -> io::Result<bool> {
    // SAFETY: the request reads the memory of the tracee, a child of this process, and writes no memory of this
    // process. The request may return any word, -1 included: only the error number shows an error.
    let (word, error) = unsafe {
        *libc::__errno_location() = 0;
        let word = libc::ptrace(libc::PTRACE_PEEKTEXT, pid.as_raw_pid(), address, 0);
        (word, *libc::__errno_location())
    };
    match error {
        0 => Ok(is_indirect_call(word.to_le_bytes())),
        // The word goes beyond the end of the code, and no call is the last instruction of all.
        libc::EIO => Ok(false),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Returns whether an instruction is a call whose target is in a register, or in memory at an address in a register
/// (opcode FF /2), or a jump whose target is in memory at such an address (FF /4), which is a tail call. Not counted
/// are targets at an address relative to the instruction, which belong to shared libraries, and jumps with an index,
/// which belong to a `match`.
#[cfg(target_arch = "x86_64")]
fn is_indirect_call(code: [u8; 8]) -> bool {
    // A prefix REX extends the numbers of registers.
    let at = usize::from(code[0] & 0xf0 == 0x40);
    let [opcode, operand, index] = [code[at], code[at + 1], code[at + 2]];
    let (is_register, has_index) = (operand >> 6 == 3, operand & 7 == 4 && index >> 3 & 7 != 4);
    let is_fixed = operand & 0xc7 == 0x05;
    opcode == 0xff
        && match operand >> 3 & 7 {
            2 => !is_fixed,
            4 => !is_register && !is_fixed && !has_index,
            _ => false,
        }
}

/// Returns the addresses of the code of the child's program, without its shared libraries.
#[cfg(target_arch = "x86_64")]
fn own_code(pid: Pid) -> io::Result<Vec<Range<u64>>> {
    let folder = format!("/proc/{}", pid.as_raw_pid());
    let program = fs::read_link(format!("{folder}/exe"))?;
    let program = program.to_string_lossy();
    let maps = fs::read_to_string(format!("{folder}/maps"))?;
    let code = maps.lines().filter(|line| line.ends_with(&*program) && line.contains("r-xp"));
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
    };
    let code: Vec<Range<u64>> = code.filter_map(range).collect();
    if code.is_empty() {
        Err(io::Error::other("the code of the child's program is not found"))
    } else {
        Ok(code)
    }
}

/// Returns the system call that a child is about to enter; none if it has just left one.
fn call_before(pid: Pid) -> io::Result<Option<Call>> {
    let mut info = mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the system writes no more than `size` bytes there; the tracee is a child of this process.
    let done =
        unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid.as_raw_pid(), size, info.as_mut_ptr()) };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are integers, for which zero is valid; the system has written over a part of them.
    let info = unsafe { info.assume_init() };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: at the entry of a system call this is the variant that the system has written.
    let entry = unsafe { info.u.entry };
    Ok(Some(Call::of(entry.nr, entry.args)))
}

/// Runs a child to its end.
///
/// # Errors
/// The child cannot be run or traced, has failed, or has set no mark; the error text says which.
pub fn run(command: &mut Command) -> io::Result<Seen> {
    trace(command, Traced::default())
}

/// As [`run`], and counts the indirect calls among the instructions: each step takes longer.
///
/// # Errors
/// The errors of [`run`].
pub fn run_counting_calls(command: &mut Command) -> io::Result<Seen> {
    #[cfg(target_arch = "x86_64")]
    let traced = Traced { counts_calls: true, ..Traced::default() };
    #[cfg(not(target_arch = "x86_64"))]
    let traced = Traced::default();
    trace(command, traced)
}

fn trace(command: &mut Command, mut traced: Traced) -> io::Result<Seen> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let trace_me = || {
        // SAFETY: this request has no further argument.
        let done = unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    let child = unsafe { command.pre_exec(trace_me) }.spawn();
    let cannot = |e| io::Error::other(format!("a child cannot be stepped: {e}"));
    let mut child = KillOnDrop(child.map_err(cannot)?);
    let pid = Pid::from_child(&child.0);
    let mut ended = None;
    let heard = child.read_output_while(|| {
        ended = Some(traced.follow(pid)?);
        Ok(())
    });
    if ended.is_some() {
        // The child has been waited for: its process number may already belong to another process.
        mem::forget(child);
    }
    let (answer, said, ()) = heard?;
    if let Some(ended) = ended {
        check_exit(ended, &said)?;
    }
    traced.seen(answer)
}

/// The state of a trace and its counts; the first count of each kind is that of the mark itself.
#[derive(Debug, Default)]
struct Traced {
    started: bool,
    counting: Option<Count>,
    pinned: Option<PinnedToOneProcessor>,
    /// The instruction address after the last step.
    #[cfg(target_arch = "x86_64")]
    at: u64,
    #[cfg(target_arch = "x86_64")]
    counts_calls: bool,
    /// Whether the next instruction is an indirect call.
    #[cfg(target_arch = "x86_64")]
    is_before_call: bool,
    #[cfg(target_arch = "x86_64")]
    own_code: Vec<Range<u64>>,
    instructions: Vec<u64>,
    indirect_calls: Vec<u64>,
    system_calls: Vec<SystemCalls>,
}

impl Traced {
    fn follow(&mut self, pid: Pid) -> io::Result<WaitStatus> {
        loop {
            let Some((_, status)) = waitpid(Some(pid), WaitOptions::empty()).map_err(io::Error::from)? else {
                continue;
            };
            let Some(signal) = status.stopping_signal() else { return Ok(status) };
            let pass_on = self.stopped(pid, signal)?;
            let on = match self.counting {
                None => libc::PTRACE_CONT,
                Some(Count::Instructions) => libc::PTRACE_SINGLESTEP,
                Some(Count::SystemCalls) => libc::PTRACE_SYSCALL,
            };
            ptrace_request(on, pid, pass_on.into())?;
        }
    }

    /// Handles a stop of the child. Returns the signal to deliver, or 0.
    fn stopped(&mut self, pid: Pid, signal: i32) -> io::Result<i32> {
        const AT_CALL: i32 = libc::SIGTRAP | 0x80;
        match (signal, self.counting) {
            (libc::SIGTRAP, Some(Count::Instructions)) => {
                #[cfg(target_arch = "x86_64")]
                let is_done = {
                    let address = instruction_address(pid)?;
                    if self.counts_calls {
                        self.count_call(pid, address)?;
                    }
                    self.completed_instruction(address)
                };
                // No instruction repeats itself on these processors.
                #[cfg(not(target_arch = "x86_64"))]
                let is_done = true;
                if let Some(count) = self.instructions.last_mut() {
                    *count += u64::from(is_done);
                }
            }
            (AT_CALL, _) => {
                if let (Some(call), Some(calls)) = (call_before(pid)?, self.system_calls.last_mut()) {
                    *calls.entry(call).or_default() += 1;
                }
            }
            (libc::SIGTRAP, _) if !self.started => {
                // The child is at its first instruction.
                let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
                ptrace_request(libc::PTRACE_SETOPTIONS, pid, options.into())?;
                self.started = true;
            }
            _ => match Count::of(signal) {
                None => return Ok(signal),
                count if self.counting == count => {
                    self.counting = None;
                    self.pinned = None;
                }
                count => {
                    self.counting = count;
                    self.pinned = PinnedToOneProcessor::on_one_processor(pid);
                    if count == Some(Count::SystemCalls) {
                        self.system_calls.push(SystemCalls::new());
                    } else {
                        self.instructions.push(0);
                        #[cfg(target_arch = "x86_64")]
                        if self.counts_calls {
                            self.indirect_calls.push(0);
                            (self.own_code, self.is_before_call) = (own_code(pid)?, false);
                        }
                    }
                }
            },
        }
        Ok(0)
    }

    /// Counts an indirect call if the last step made one. `address` is the address of the next instruction.
    #[cfg(target_arch = "x86_64")]
    fn count_call(&mut self, pid: Pid, address: u64) -> io::Result<()> {
        let is_called = self.is_before_call && self.own_code.iter().any(|code| code.contains(&address));
        if let Some(calls) = self.indirect_calls.last_mut() {
            *calls += u64::from(is_called);
        }
        self.is_before_call = is_before_indirect_call(pid, address)?;
        Ok(())
    }

    /// Returns whether the last step completed an instruction, and was not an iteration of one that repeats itself.
    #[cfg(target_arch = "x86_64")]
    fn completed_instruction(&mut self, address: u64) -> bool {
        mem::replace(&mut self.at, address) != address
    }

    /// Returns the counts without the cost of the marks themselves.
    fn seen(self, answer: String) -> io::Result<Seen> {
        let mut seen = Seen { answer, ..Seen::default() };
        if let Some((empty, counts)) = self.instructions.split_first() {
            seen.instructions = counts.iter().map(|count| count.saturating_sub(*empty)).collect();
        }
        if let Some((empty, counts)) = self.indirect_calls.split_first() {
            seen.indirect_calls = counts.iter().map(|count| count.saturating_sub(*empty)).collect();
        }
        if let Some((empty, calls)) = self.system_calls.split_first() {
            let own = |call: &Call| empty.get(call).copied().unwrap_or(0);
            let without = |calls: &SystemCalls| {
                let left = calls.iter().map(|(call, count)| (*call, count.saturating_sub(own(call))));
                left.filter(|(_, count)| *count > 0).collect()
            };
            seen.system_calls = calls.iter().map(without).collect();
        }
        if self.instructions.is_empty() && self.system_calls.is_empty() {
            return Err(io::Error::other("the child has set no mark"));
        }
        Ok(seen)
    }
}

/// Pins the child's main thread and this thread to one processor: a step is two switches between them, which take ten
/// times as long across processors. Dropping it restores the previous affinities.
#[derive(Debug)]
struct PinnedToOneProcessor {
    pid: Pid,
    before: [CpuSet; 2],
}

impl PinnedToOneProcessor {
    /// Returns none where the system does not allow it; a step then takes longer.
    fn on_one_processor(pid: Pid) -> Option<Self> {
        let before = [sched_getaffinity(Some(pid)).ok()?, sched_getaffinity(None).ok()?];
        let here = sched_getcpu();
        let mut one = CpuSet::new();
        one.set(here);
        let this = Self { pid, before };
        // If one of the two calls fails, dropping `this` undoes the other.
        sched_setaffinity(None, &one).ok()?;
        sched_setaffinity(Some(pid), &one).ok()?;
        Some(this)
    }
}

impl Drop for PinnedToOneProcessor {
    fn drop(&mut self) {
        // The child may have ended.
        let _ = sched_setaffinity(Some(self.pid), &self.before[0]);
        let _ = sched_setaffinity(None, &self.before[1]);
    }
}

/// Returns an error if the child has failed.
fn check_exit(ended: WaitStatus, said: &str) -> io::Result<()> {
    if ended.exit_status() == Some(0) {
        return Ok(());
    }
    let last = said.lines().last().unwrap_or_default();
    let how = ended.terminating_signal().map_or_else(
        || format!("exit code {}", ended.exit_status().unwrap_or_default()),
        |signal| format!("signal {signal}"),
    );
    Err(io::Error::other(format!("the benchmark failed while it was stepped ({how}): {last}")))
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        path::PathBuf,
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn the_first_pair_of_marks_is_subtracted() {
        let call = |number| Call { number, is_wake: false };
        let calls = |counts: &[(u64, u64)]| counts.iter().map(|&(n, count)| (call(n), count)).collect();
        let traced = Traced {
            instructions: vec![10, 25, 7],
            indirect_calls: vec![2, 5],
            system_calls: vec![calls(&[(1, 1), (2, 3)]), calls(&[(1, 4), (2, 3), (3, 1)])],
            ..Traced::default()
        };
        let seen = traced.seen("answer".into()).unwrap();
        assert_eq!((seen.instructions, seen.indirect_calls), (vec![15, 0], vec![3]));
        assert_eq!(seen.system_calls, [calls(&[(1, 3), (3, 1)])]);
    }

    /// The variable by which this test calls itself: then it traces a child that never ends.
    const TRACE: &str = "WINDFALL_TRACED_PID";

    #[test]
    fn a_child_ends_with_the_process_that_traces_it() {
        if let Some(file) = env::var_os(TRACE) {
            // The shell waits for a writer of the pipe.
            let script =
                "mkfifo \"$0.pipe\"; echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; read x < \"$0.pipe\"";
            let _ = run(Command::new("sh").args(["-c", script]).arg(file));
            unreachable!("the child waits");
        }
        let file: PathBuf = env::temp_dir().join(format!("windfall-traced-{}", std::process::id()));
        let name = "stepped::tests::a_child_ends_with_the_process_that_traces_it";
        let mut tracer = Command::new(env::current_exe().unwrap());
        tracer.args([name, "--exact"]).env(TRACE, &file).stdout(Stdio::null()).stderr(Stdio::null());
        let mut tracer = KillOnDrop(tracer.spawn().unwrap());
        let start = Instant::now();
        let await_it = |what: &str, is_done: &dyn Fn() -> bool| {
            while !is_done() {
                assert!(start.elapsed() < Duration::from_mins(10), "{what}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        await_it("the child does not begin", &|| file.exists());
        let pid = fs::read_to_string(&file).unwrap();
        for file in [file.clone(), file.with_extension("pipe")] {
            fs::remove_file(file).unwrap();
        }
        let stat = format!("/proc/{}/stat", pid.trim());
        // A process that has ended may remain as a zombie until its new parent waits for it.
        let has_ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        assert!(!has_ended());
        tracer.0.kill().unwrap();
        await_it("the child outlives its tracer", &has_ended);
    }

    #[test]
    fn a_child_that_fails_or_sets_no_mark_is_reported() {
        let none = run(Command::new("sh").args(["-c", "true"])).unwrap_err().to_string();
        assert!(none.contains("no mark"), "{none}");
        let failed = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(failed.contains("exit code 3") && failed.contains("why"), "{failed}");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn an_instruction_that_repeats_itself_counts_once() {
        let mut traced = Traced::default();
        let steps = [10, 12, 12, 12, 12, 14, 10, 12, 14].map(|address| traced.completed_instruction(address));
        assert_eq!(steps.iter().filter(|is_done| **is_done).count(), 6);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_call_of_a_trait_object_is_distinguished_from_other_calls() {
        let call = |bytes: &[u8]| {
            let mut code = [0x90; 8];
            code[..bytes.len()].copy_from_slice(bytes);
            is_indirect_call(code)
        };
        // call rax; call [rax + 0x18]; call r12; call [r15 + 0x20]; call [rsp + 8].
        let indirect: [&[u8]; 5] = [
            &[0xff, 0xd0],
            &[0xff, 0x50, 0x18],
            &[0x41, 0xff, 0xd4],
            &[0x41, 0xff, 0x57, 0x20],
            &[0xff, 0x54, 0x24, 8],
        ];
        assert!(indirect.into_iter().all(call));
        // jmp [rax + 0x18]; jmp [r11 + 0x20]; jmp [rcx].
        let tail: [&[u8]; 3] = [&[0xff, 0x60, 0x18], &[0x41, 0xff, 0x63, 0x20], &[0xff, 0x21]];
        assert!(tail.into_iter().all(call));
        // jmp [rax + rcx * 8]: the table of a match.
        assert!(!call(&[0xff, 0x24, 0xc8]));
        // call of a relative address; call [rip + 0x1234]; jmp rax; inc eax; push [rax].
        let others: [&[u8]; 5] = [
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0x15, 0x34, 0x12, 0, 0],
            &[0xff, 0xe0],
            &[0xff, 0xc0],
            &[0xff, 0x30],
        ];
        assert!(!others.into_iter().any(call));
    }

    #[test]
    fn a_futex_that_wakes_is_distinguished_from_one_that_waits() {
        let futex = |command: libc::c_int| {
            let arguments = [7, u64::from(command.cast_unsigned()), 1, 0, 0, 0];
            Call::of(libc::SYS_futex as u64, arguments)
        };
        let private = libc::FUTEX_PRIVATE_FLAG;
        assert!(futex(libc::FUTEX_WAKE).is_wake && futex(libc::FUTEX_WAKE | private).is_wake);
        assert!(!futex(libc::FUTEX_WAIT).is_wake && !futex(libc::FUTEX_WAIT_BITSET | private).is_wake);
        assert!(!Call::of(libc::SYS_write as u64, [1; 6]).is_wake);
        assert!(Call::of(libc::SYS_write as u64, [1; 6]).is_write_or_sync());
    }

    #[test]
    fn marks_of_a_shell_are_seen() {
        let count = |signal: &str, between: &str| {
            let mark = format!("kill -{signal} $$;");
            let script = format!("{mark} {mark} {mark} {between} {mark} echo done");
            run(Command::new("sh").args(["-c", &script])).unwrap()
        };
        let name = env::temp_dir().join(format!("windfall-stepped-{}", std::process::id()));
        let (write, dir) = (format!("echo x > {};", name.display()), "cd /;");
        let calls = count("USR2", &write);
        fs::remove_file(&name).unwrap();
        assert_eq!((calls.system_calls.len(), calls.answer.as_str()), (1, "done\n"));
        assert!(calls.system_calls[0].keys().any(|call| call.is_write_or_sync()), "{calls:?}");
        assert!(calls.system_calls[0].keys().any(|call| !call.is_write_or_sync()), "a file was opened");
        assert!(count("USR2", "").system_calls[0].is_empty());
        let (some, none) = (count("USR1", dir), count("USR1", ""));
        assert!(some.instructions[0] > none.instructions[0] + 100, "{some:?} and {none:?}");
    }
}
