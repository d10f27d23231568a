//! Tests of callbacks for durable positions.
//!
//! **Purpose.** Each callback is called once, in the order of positions, and with success only if its position is
//! durable.
//!
//! **Invariants.** No worker runs: the tests call its steps.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Registers a callback that sends its number and its outcome.
fn register(log: &Log, lsn: Lsn, sender: &Sender<(u8, Result<()>)>, number: u8) {
    let sender = sender.clone();
    log.when_durable(lsn, Box::new(move |outcome| sender.send((number, outcome)).unwrap())).unwrap();
}

/// A log with two groups, of which the first is durable, and a callback for each of them.
struct Registered {
    life: OpenLog,
    first: Lsn,
    second: Lsn,
    receiver: Receiver<(u8, Result<()>)>,
}

fn registered() -> Registered {
    let life = open(new_database());
    let (sender, receiver) = channel();
    let (_, first, _) = life.append(&[1; 40]);
    life.log.sync_to(first).unwrap();
    let (_, second, _) = life.append(&[2; 40]);
    register(&life.log, second, &sender, 2);
    register(&life.log, first, &sender, 1);
    Registered { life, first, second, receiver }
}

/// Runs steps until one has nothing to do, and returns what was called.
fn called(log: &Log, receiver: &Receiver<(u8, Result<()>)>) -> Vec<(u8, bool)> {
    while log.notify_step() == Next::Again {}
    receiver.try_iter().map(|(number, outcome)| (number, outcome.is_ok())).collect()
}

#[test]
fn callbacks_are_called_once_in_the_order_of_their_positions() {
    let life = open(new_database());
    let (sender, receiver) = channel();
    let ends = [1, 2, 3].map(|n| life.append(&[n; 40]).1);
    for (number, lsn) in [(3, ends[2]), (1, ends[0]), (2, ends[1]), (4, ends[2])] {
        register(&life.log, lsn, &sender, number);
    }
    assert_eq!(called(&life.log, &receiver), [], "nothing is durable");
    life.log.write_to(ends[2]).unwrap();
    assert_eq!(called(&life.log, &receiver), [], "what is written is not durable");
    while life.log.notify_wake().is_notified() {
        life.log.notify_wake().timed_wait(Duration::ZERO);
    }
    life.log.sync_to(ends[0]).unwrap();
    assert!(receiver.try_recv().is_err(), "the thread that synced has called a callback");
    assert!(life.log.notify_wake().is_notified(), "the worker sleeps");
    let durable = ends.iter().filter(|end| **end <= life.log.durable()).count();
    assert_eq!(durable, 3, "a sync covers what is written");
    let ok = |numbers: &[u8]| numbers.iter().map(|n| (*n, true)).collect::<Vec<_>>();
    assert_eq!(called(&life.log, &receiver), ok(&[1, 2, 3, 4]));
    assert_eq!(called(&life.log, &receiver), [], "each is called once");
    let (_, later, _) = life.append(&[4; 40]);
    register(&life.log, later, &sender, 6);
    register(&life.log, ends[1], &sender, 5);
    assert_eq!(called(&life.log, &receiver), ok(&[5]), "only this position is durable already");
    life.log.sync_to(later).unwrap();
    assert_eq!(called(&life.log, &receiver), ok(&[6]));
}

#[test]
fn callbacks_of_a_stopped_database_get_its_error() {
    let Registered { life, second, receiver, .. } = registered();
    life.disk.fail_sync();
    life.log.sync_to(second).unwrap_err();
    assert_eq!(called(&life.log, &receiver), [(1, true), (2, false)]);
}

#[test]
fn the_end_of_the_database_calls_every_callback_and_takes_no_more() {
    let Registered { life, first, receiver, .. } = registered();
    let panics: DurableCallback = Box::new(|_| panic!("a callback of a test"));
    life.log.when_durable(first, panics).unwrap();
    life.log.end_notifications();
    let outcomes: Vec<_> = receiver.try_iter().collect();
    assert!(matches!(&outcomes[..], [(1, Ok(())), (2, Err(Error::Closed))]), "{outcomes:?}");
    let refused = life.log.when_durable(first, Box::new(|_| panic!("it was refused")));
    assert!(matches!(refused, Err(Error::Closed)));
    assert_eq!(called(&life.log, &receiver), []);
}
