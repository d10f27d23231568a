//! What others notice while a table goes that has much of something.
//!
//! **Purpose.** A reader and a writer of another table call at times that were fixed before; the longest time in which
//! each finishes nothing is looked at in windows that begin with a drop, and in windows without.
//!
//! **Invariants.** Both windows belong to one run of the same load, and which comes first changes from run to run. The
//! load does not go on while a table is made. Waits on the dropping thread are those of reader and writer: a statement
//! on many tables changes their records in one go, and the worker that keeps the system tree in order may wait for
//! that.
//!
//! **May touch.** `ground`, `victim`, `engine`, `windfall-measure`.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use windfall_measure::{Pace, Random, Scale, Timeline, flat::Others};

use super::{
    ground::{OTHERS, Side},
    owned::Kind,
    victim::{Victim, run as statement},
};
use crate::{
    engine,
    failure::{Failure, Result},
};

/// From one call of a client to the next, on average.
const READS: Duration = Duration::from_micros(20);
const WRITES: Duration = Duration::from_micros(50);

/// Drops so many tables beside a load.
pub fn run(side: &mut Side, scale: Scale, seed: u64) -> Result<Others> {
    let window = Duration::from_millis(scale.pick(10, 50, 50));

    let mut others = Others::default();
    for n in 0..side.owned.rounds(scale).beside {
        let mut victim = Victim::make(side, Kind::Drop)?;
        victim.let_go();
        windows(side, &victim, window, seed + u64::from(n), &mut others)?;
        victim.remove(side, Kind::Drop)?;
    }
    Ok(others)
}

/// A run of the load with two windows, at the begin of one of which the table goes.
fn windows(side: &Side, victim: &Victim, window: Duration, seed: u64, others: &mut Others) -> Result<()> {
    // As much lies before each window as is in it.
    let (begins, length) = ([window, window * 3], window * 4);
    let with = (seed % 2) as usize;
    let start = Instant::now();
    let names = victim.names();
    let client = |who: u64, interval: Duration| {
        let (mut random, mut pace) = (Random::new(seed, who), Pace::new(start, interval));
        let mut line = Timeline::new(length);
        loop {
            let due = pace.next_due(&mut random);
            if due >= line.length_ns() {
                return Ok((line, engine::waits_on_drops_of_this_thread()));
            }
            pace.wait_until(due);
            let key = random.below(OTHERS).to_be_bytes();
            if who == 0 {
                black_box(side.others.get(&key)?);
            } else {
                side.others.put(&key, &[seed as u8; 100])?;
            }
            line.finished(pace.now());
        }
    };
    let (lines, dropped) = thread::scope(|scope| {
        let clients = [
            scope.spawn(|| -> Result<_> { client(0, READS) }),
            scope.spawn(|| -> Result<_> { client(1, WRITES) }),
        ];
        thread::sleep((start + begins[with]).saturating_duration_since(Instant::now()));
        let begun = start.elapsed();
        let dropped = statement(side, Kind::Drop, &names).map(|_| begun);
        let panicked = |_| Err(Failure::said("a client has panicked"));
        (clients.map(|client| client.join().unwrap_or_else(panicked)), dropped)
    });
    let mut begins = begins;
    begins[with] = dropped?;
    for (line, gaps) in lines.into_iter().zip([&mut others.readers, &mut others.writers]) {
        let (line, waits) = line?;
        others.waits_on_drops += waits;
        let gap = |begin: Duration| {
            let from = begin.as_nanos() as u64;
            line.longest_gap_within(from, from + window.as_nanos() as u64).length_ns as f64
        };
        gaps.with.push(gap(begins[with]));
        gaps.without.push(gap(begins[1 - with]));
    }
    Ok(())
}
