//! Row operations against a model, with failures and rollbacks at every step. In half of the histories each change
//! first freezes its leaf, and in half of them the calls supply the entries of the indexes, with payloads.

use std::io::Read;

use proptest::prelude::*;
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{super::Trx, Base, Mode, Rows, Setup, Value, change, keys_of};
use crate::{
    error::{Error, Owner, SchemaError},
    failpoint::Eager,
};

#[derive(Clone, Debug)]
enum Op {
    Write {
        key: u8,
        value: Vec<u8>,
        mode: Mode,
        stream: bool,
        fail_at: u64,
    },
    Delete {
        key: u8,
        fail_at: u64,
    },
    /// Several changes, then rollback or commit.
    Many {
        changes: Vec<(u8, Option<Vec<u8>>)>,
        commit: bool,
    },
    Purge,
    Reopen,
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![4 => 0..40usize, 1 => 1000..1100usize, 1 => 1025..9000usize];
    ((0..6u8, 0..2u8, 0..3u8), length, any::<u8>()).prop_map(|((a, b, c), length, fill)| {
        let mut value = vec![a, b, c];
        value.resize(length, fill);
        value
    })
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![Just(Mode::Insert), Just(Mode::Put), Just(Mode::Update)];
    let fail_at = || prop_oneof![2 => Just(0u64), 1 => 1..8u64];
    let change = (0..12u8, prop::option::of(value()));
    prop_oneof![
        8 => (0..12u8, value(), mode, any::<bool>(), fail_at())
            .prop_map(|(key, value, mode, stream, fail_at)| Op::Write { key, value, mode, stream, fail_at }),
        4 => (0..12u8, fail_at()).prop_map(|(key, fail_at)| Op::Delete { key, fail_at }),
        2 => (prop::collection::vec(change, 1..6), any::<bool>())
            .prop_map(|(changes, commit)| Op::Many { changes, commit }),
        1 => Just(Op::Purge),
        1 => Just(Op::Reopen),
    ]
}

/// Returns the model after a write.
fn expect(rows: &Rows, key: &[u8], value: &[u8], mode: Mode) -> Result<Rows, SchemaError> {
    let there = rows.contains_key(key);
    match mode {
        Mode::Insert if there => {
            return Err(SchemaError::DuplicateKey {
                owner: Owner::Table("table".into()),
                index: None,
                row: key.into(),
            });
        }
        Mode::Update if !there => return Err(SchemaError::NoRow("table".into())),
        _ => {}
    }
    let unique = keys_of(value)[0].clone();
    let taken = |(other, old): (&Vec<u8>, &Vec<u8>)| other != key && keys_of(old)[0] == unique;
    if unique.is_some()
        && let Some((other, _)) = rows.iter().find(|row| taken(*row))
    {
        let owner = Owner::Index { table: "table".into(), index: "unique".into() };
        return Err(SchemaError::DuplicateKey { owner, index: None, row: other[..].into() });
    }
    let mut after = rows.clone();
    after.insert(key.to_vec(), value.to_vec());
    Ok(after)
}

struct Run {
    disk: SimulatedDisk,
    base: Option<Base>,
    rows: Rows,
    supplied: bool,
}

impl Run {
    fn base(&self) -> &Base {
        self.base.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        if let Some(base) = self.base.take() {
            base.sync().unwrap();
        }
        let mut setup = Setup::simulated(&self.disk, &SimulatedEnv::new(3));
        setup.purge = false;
        setup.supplied = self.supplied;
        setup.log_size = 64 << 20;
        self.base = Some(Base::open(setup).unwrap());
    }

    fn write(&mut self, key: &[u8], value: &[u8], mode: Mode, stream: bool, fail_at: u64) {
        let base = self.base();
        base.transactions.fail_at(fail_at);
        let mut source = value;
        let new = if stream {
            Value::Source { length: value.len() as u64, source: &mut source as &mut dyn Read }
        } else {
            Value::Bytes(value)
        };
        let done = base.transactions.write_bytes(&base.target(&base.secondaries()), key, value, new, mode);
        let failed = fail_at > 0 && base.transactions.undo_context().failpoint.steps_left() == 0;
        base.transactions.fail_at(0);
        match (done, expect(&self.rows, key, value, mode)) {
            (Ok(_), Ok(after)) => self.rows = after,
            (Err(Error::Schema(found)), Err(expected)) => assert_eq!(found.to_string(), expected.to_string()),
            (Err(error), _) if failed => assert!(error.to_string().contains("failpoint"), "{error}"),
            (done, expected) => panic!("{done:?} where {expected:?} was expected"),
        }
    }

    fn many(&mut self, changes: Vec<(u8, Option<Vec<u8>>)>, commit: bool) {
        let base = self.base();
        let secondaries = base.secondaries();
        let target = base.target(&secondaries);
        let mut rows = self.rows.clone();
        let mut trx = Trx::new(&base.transactions);
        for (key, value) in changes {
            let key = [key];
            if value.as_ref().is_some_and(|value| expect(&rows, &key, value, Mode::Put).is_err()) {
                continue;
            }
            change(&mut trx, &target, &key, value.as_deref()).unwrap();
            match value {
                Some(value) => drop(rows.insert(key.to_vec(), value)),
                None => drop(rows.remove(&key[..])),
            }
        }
        if commit {
            trx.commit().unwrap();
            drop(trx);
            self.rows = rows;
        } else {
            trx.rollback().unwrap();
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Write { key, value, mode, stream, fail_at } => {
                self.write(&[key], &value, mode, stream, fail_at);
            }
            Op::Delete { key, fail_at } => {
                let base = self.base();
                base.transactions.fail_at(fail_at);
                let done = base.delete(&[key]);
                base.transactions.fail_at(0);
                match done {
                    Ok(end) => assert_eq!(end.is_some(), self.rows.remove(&[key][..]).is_some()),
                    Err(error) => assert!(error.to_string().contains("failpoint"), "{error}"),
                }
            }
            Op::Many { changes, commit } => self.many(changes, commit),
            Op::Purge => {
                self.base().compare_purged(&self.rows).unwrap_or_else(|wrong| panic!("{wrong}"));
            }
            Op::Reopen => self.reopen(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn rows_match_the_model(
        ops in prop::collection::vec(op(), 1..50),
        eager in any::<bool>(),
        supplied in any::<bool>(),
    ) {
        Eager::set(eager);
        let mut run = Run { disk: SimulatedDisk::new(1), base: None, rows: Rows::new(), supplied };
        run.reopen();
        for op in ops {
            let what = format!("{op:?}");
            run.step(op);
            run.base().compare(&run.rows).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        }
        // Once the last row is deleted and purged, the trees have no pages except empty ones.
        for key in run.rows.keys() {
            run.base().delete(key).unwrap();
        }
        run.base().purge_all();
        let (entries, pages) = run.base().footprint();
        prop_assert_eq!(entries, 0);
        prop_assert!(pages <= 9, "{} pages", pages);
    }
}
