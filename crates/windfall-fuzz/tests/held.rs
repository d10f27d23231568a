//! Every fuzz target over its seeds, its corpus, inputs that once revealed a bug, and mutants of them all: none panics,
//! takes long, or takes much memory. The fuzzer searches for more (`make fuzz`); this test preserves what it has found.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::{Cell, RefCell},
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process, slice,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use windfall_fuzz::{
    Input, Mutator, Target, all_inputs, corpus, corpus_inputs, regression_inputs, regressions, target,
    targets,
};

/// Number of mutants per target, over all its inputs.
const MUTANTS: usize = 40_000;
/// The maximum memory for an input of some kilobytes, in bytes: one and a half times the longest frame of the log.
const MEMORY: usize = 96 << 20;
/// The limit of a single allocation, in bytes. A larger one would fail, and end the process without naming the input.
const MAX_ALLOCATION: usize = 1 << 38;
/// The maximum time for an input, on a machine under any load.
const LONGEST: Duration = Duration::from_mins(10);

/// An allocator that counts what each thread has allocated.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
    /// The current input of this thread.
    static INPUT: RefCell<Option<(&'static str, String, Vec<u8>)>> = const { RefCell::new(None) };
}

/// Reports the input that requests more memory than exists.
fn refuse(bytes: usize) {
    if let Ok(Some((target, name, input))) = INPUT.try_with(RefCell::take) {
        report(target, &name, &input, &format!("it asks for {} GiB of memory at once", bytes >> 30));
        process::exit(1);
    }
}

fn count(bytes: isize) {
    // When a thread ends, its thread-local variables are destroyed first.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = PEAK_BYTES.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: everything is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MAX_ALLOCATION {
            refuse(layout.size());
        }
        count(layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MAX_ALLOCATION {
            refuse(layout.size());
        }
        count(layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The current input of a thread, and its start.
type At = Mutex<Option<(Instant, &'static str, String, Vec<u8>)>>;

/// Stores a failing input for debugging, and prints how to repeat it.
fn report(target: &str, name: &str, bytes: &[u8], what: &str) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}-{:08x}", fnv1a(bytes)));
    let kept = fs::write(&path, bytes);
    eprintln!("\n{target}: {what}, with {name} ({} bytes)", bytes.len());
    match kept {
        Ok(()) => eprintln!(
            "again: WINDFALL_FUZZ_INPUT={} WINDFALL_FUZZ_TARGET={target} cargo test -p windfall-fuzz --test held\n\
             to keep it: move it to crates/windfall-fuzz/regressions/{target}/",
            path.display()
        ),
        Err(error) => eprintln!("{}: {error}", path.display()),
    }
}

/// Returns a short name for bytes: their FNV-1a hash.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Runs one input. Returns whether the target passed.
fn holds(target: &'static Target, name: &str, bytes: &[u8], at: &At) -> bool {
    *at.lock().expect("no holder panics") = Some((Instant::now(), target.name, name.into(), bytes.to_vec()));
    INPUT.set(Some((target.name, name.into(), bytes.to_vec())));
    let before = NOW.get();
    PEAK_BYTES.set(before);
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    let took = PEAK_BYTES.get() - before;
    INPUT.set(None);
    *at.lock().expect("no holder panics") = None;
    let what = match result {
        Err(_) => "it panics".to_owned(),
        Ok(()) if took > MEMORY.cast_signed() => format!("it takes {} MiB of memory", took >> 20),
        Ok(()) => return true,
    };
    report(target.name, name, bytes, &what);
    false
}

/// Runs a target over all its inputs, and over mutants. Returns the number of inputs, or `None` if one failed.
fn run(target: &'static Target, at: &At) -> Option<usize> {
    let inputs = all_inputs(target).expect("the inputs can be read");
    for Input { name, bytes } in &inputs {
        if !holds(target, name, bytes, at) {
            return None;
        }
    }
    // Slow targets get fewer mutants, but the same number in every run.
    let mutants = match target.name {
        "database" => MUTANTS / 20,
        "tree" => MUTANTS / 8,
        _ => MUTANTS,
    };
    let mut mutator = Mutator::new(fnv1a(target.name.as_bytes()).into());
    for n in 0..mutants {
        let input = &inputs[n % inputs.len()];
        let other = &inputs[(n / inputs.len() + n) % inputs.len()];
        let mutant = mutator.mutant(&input.bytes, &other.bytes);
        if !holds(target, &format!("mutant {n}, of {}", input.name), &mutant, at) {
            return None;
        }
    }
    Some(inputs.len() + mutants)
}

/// Watches for inputs that take too long, and ends the process with the name of the input.
fn watch(ats: &[At], left: &AtomicUsize) {
    while left.load(SeqCst) > 0 {
        thread::sleep(Duration::from_millis(50));
        for at in ats {
            if let Some((since, target, name, bytes)) = &*at.lock().expect("no holder panics")
                && since.elapsed() > LONGEST
            {
                report(
                    target,
                    name,
                    bytes,
                    &format!("it takes more than {} minutes", LONGEST.as_secs() / 60),
                );
                process::abort();
            }
        }
    }
}

#[test]
fn no_input_that_is_known_and_no_mutant_of_one_breaks_a_target() {
    let only = env::var("WINDFALL_FUZZ_TARGET").ok().map(|name| target(&name).expect("a target's name"));
    if let Some(path) = env::var_os("WINDFALL_FUZZ_INPUT") {
        let target = only.expect("WINDFALL_FUZZ_TARGET names its target");
        let bytes = fs::read(&path).expect("the input");
        let (at, left) = (At::default(), AtomicUsize::new(1));
        thread::scope(|scope| {
            scope.spawn(|| watch(slice::from_ref(&at), &left));
            let held = holds(target, &path.to_string_lossy(), &bytes, &at);
            left.store(0, SeqCst);
            assert!(held, "it is broken");
        });
        return;
    }
    let all: Vec<_> = targets().filter(|target| only.is_none_or(|only| only.name == target.name)).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(all.len());
    let ats: Vec<At> = (0..threads).map(|_| At::default()).collect();
    let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(threads));
    let broken = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| watch(&ats, &left));
        for at in &ats {
            let (next, left, broken, all) = (&next, &left, &broken, &all);
            scope.spawn(move || {
                // The slow targets are last in the list, and are started first, beginning with the slowest.
                while let Some(target) = all.len().checked_sub(next.fetch_add(1, SeqCst) + 1).map(|n| all[n])
                {
                    let since = Instant::now();
                    match run(target, at) {
                        Some(inputs) => eprintln!(
                            "{:>14}: {inputs:>6} inputs in {:4.1} s",
                            target.name,
                            since.elapsed().as_secs_f64()
                        ),
                        None => broken.lock().expect("no holder panics").push(target.name),
                    }
                }
                left.fetch_sub(1, SeqCst);
            });
        }
    });
    let broken = broken.into_inner().expect("no holder panics");
    assert!(broken.is_empty(), "these targets are broken: {broken:?}");
}

/// Requests more memory than exists, which no target's input may do.
static GREEDY: Target = Target {
    name: "greedy",
    run: |bytes| drop(Vec::<u8>::with_capacity(bytes.len() << 40)),
    seeds: Vec::new,
};

/// Runs in its own process, which the allocator ends.
#[test]
fn an_input_that_asks_for_absurd_memory_is_named() {
    const CHILD: &str = "WINDFALL_FUZZ_GREEDY";
    if env::var_os(CHILD).is_some() {
        holds(&GREEDY, "the greedy one", b"much", &At::default());
        return;
    }
    let me = env::current_exe().expect("this program");
    let mut child = process::Command::new(me);
    child.args(["--exact", "an_input_that_asks_for_absurd_memory_is_named", "--nocapture"]).env(CHILD, "yes");
    let output = child.output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("with the greedy one (4 bytes)"), "{stderr}");
    assert!(stderr.contains("it asks for 4096 GiB"), "{stderr}");
}

/// Inputs without a target would be ignored silently, and so would those of a target that are not found.
#[test]
fn every_kept_input_is_a_targets() {
    for folder in [corpus(), regressions()] {
        for entry in fs::read_dir(&folder).expect("the folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
            let target = target(name).unwrap_or_else(|| panic!("{} is not of a target", path.display()));
            let inputs = if path.is_dir() { regression_inputs(target) } else { corpus_inputs(target) }
                .expect("inputs");
            assert!(!inputs.is_empty(), "{} has no input", path.display());
        }
    }
}

#[test]
fn a_mutator_changes_nearly_all_and_repeats_itself() {
    let (one, other) = (vec![3; 200], vec![5; 50]);
    let mut changed = 0;
    let (mut a, mut b) = (Mutator::new(7), Mutator::new(7));
    for _ in 0..1000 {
        let mutant = a.mutant(&one, &other);
        assert_eq!(mutant, b.mutant(&one, &other));
        changed += usize::from(mutant != one);
    }
    assert!(changed > 950, "{changed} of 1000");
}
