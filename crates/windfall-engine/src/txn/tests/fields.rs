//! Rows that are stored field by field: their chains come and go with the versions that need them.

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    Base, CLUSTERED, Edit, FieldSet, Mode, RowTarget, Rows, Setup, Stop, Trx, Value, row, unblocked, value,
};
use crate::{
    env::Env as _,
    error::{Error, SchemaError},
    row as encoded,
    sync::Arc,
    tablespace,
    tree::fields::fields_limit,
    txn::{FieldChange, Follower, Visibility},
};

fn base(seed: u64) -> (Base, SimulatedEnv) {
    let env = SimulatedEnv::new(seed);
    let setup = Setup::simulated(&SimulatedDisk::new(1), &env);
    let base = Base::open(Setup { log_size: 256 << 20, purge: false, ..setup }).unwrap();
    (base, env)
}

/// The fields of rows, by their keys.
type Fields = std::collections::BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

fn encode(fields: &Fields) -> Rows {
    fields.iter().map(|(key, fields)| (key.clone(), encoded::encode(fields))).collect()
}

/// Makes a change of fields, which must succeed.
fn change_fields(
    trx: &mut Trx<'_>,
    target: &RowTarget<'_>,
    key: &[u8],
    fields: &[FieldChange<'_>],
    mode: Mode,
) {
    unblocked(trx, |trx| {
        let mut edit = Edit::write(Value::Fields(fields), mode);
        row::change(trx, target, key, &mut edit, false).map(drop)
    })
    .unwrap();
}

/// Gives a row another key.
fn change_key(
    trx: &mut Trx<'_>,
    target: &RowTarget<'_>,
    key: &[u8],
    new_key: &[u8],
    fields: &[FieldChange<'_>],
) {
    unblocked(trx, |trx| row::change(trx, target, key, &mut Edit::delete(), false).map(drop)).unwrap();
    unblocked(trx, |trx| {
        let mut edit = Edit::write(Value::Fields(fields), Mode::Insert).keeping_fields_of(key);
        row::change(trx, target, new_key, &mut edit, false).map(drop)
    })
    .unwrap();
}

/// Returns a field: often so long that it needs a chain, or that it needs one next to others.
fn random_field(env: &SimulatedEnv) -> Vec<u8> {
    let length = [0, 3, 200, 600, 1000, 5000, 20_000][(env.random() % 7) as usize];
    vec![env.random() as u8; length]
}

/// Changes a random row, in the table and in the model.
fn change_some(trx: &mut Trx<'_>, target: &RowTarget<'_>, rows: &mut Fields, env: &SimulatedEnv) {
    let key = vec![b'a' + (env.random() % 9) as u8];
    let Some(old) = rows.get(&key).cloned() else {
        // At least two fields: the first bytes of the value say how many, and no two rows may have the same.
        let count = 2 + (env.random() % 4) as usize;
        let mut new: Vec<_> = (0..count).map(|_| random_field(env)).collect();
        new[0] = key.clone();
        let fields: Vec<_> = new.iter().map(|field| FieldChange::Set(field)).collect();
        change_fields(trx, target, &key, &fields, Mode::Insert);
        rows.insert(key, new);
        return;
    };
    match env.random() % 9 {
        // Another key, which the first field follows, and the other fields with it.
        8 => {
            let new_key = vec![b'a' + (env.random() % 9) as u8];
            if rows.contains_key(&new_key) {
                return;
            }
            let adds = env.random().is_multiple_of(2).then(|| random_field(env));
            let mut fields = vec![FieldChange::Keep; old.len()];
            fields[0] = FieldChange::Set(&new_key);
            fields.extend(adds.as_deref().map(FieldChange::Set));
            change_key(trx, target, &key, &new_key, &fields);
            let mut new = rows.remove(&key).unwrap();
            new[0].clone_from(&new_key);
            new.extend(adds);
            rows.insert(new_key, new);
        }
        0 => {
            unblocked(trx, |trx| row::change(trx, target, &key, &mut Edit::delete(), false).map(drop))
                .unwrap();
            rows.remove(&key);
        }
        1 => {
            let bytes = encoded::encode(&old);
            unblocked(trx, |trx| {
                let mut edit = Edit::write(Value::Bytes(&bytes), Mode::Put);
                row::change(trx, target, &key, &mut edit, false).map(drop)
            })
            .unwrap();
        }
        _ => {
            let count = old.len() + (env.random() % 3) as usize;
            let new: Vec<Option<Vec<u8>>> = (0..count.saturating_sub((env.random() % 2) as usize).max(1))
                .map(|n| (n >= old.len() || env.random().is_multiple_of(3)).then(|| random_field(env)))
                .collect();
            let fields: Vec<_> = new
                .iter()
                .map(|field| field.as_deref().map_or(FieldChange::Keep, FieldChange::Set))
                .collect();
            change_fields(trx, target, &key, &fields, Mode::Update);
            let fields =
                new.into_iter().enumerate().map(|(n, field)| field.unwrap_or_else(|| old[n].clone()));
            rows.insert(key, fields.collect());
        }
    }
}

/// Old views read the versions that they see until they end, whichever fields later ones have kept, and afterwards each
/// page that no version needs is free.
#[test]
fn chains_are_kept_and_freed_with_the_versions_that_need_them() {
    for seed in 0..12 {
        let (base, env) = base(seed);
        // No index: any two rows may have fields of the same bytes.
        let target = base.target(&[]);
        let mut rows = Fields::new();
        let mut views = Vec::new();
        for _ in 0..60 {
            let mut trx = Trx::new(&base.transactions);
            let mut now = rows.clone();
            for _ in 0..=env.random() % 3 {
                change_some(&mut trx, &target, &mut now, &env);
                if env.random().is_multiple_of(4) {
                    let (savepoint, before) = (trx.savepoint(), now.clone());
                    change_some(&mut trx, &target, &mut now, &env);
                    change_some(&mut trx, &target, &mut now, &env);
                    trx.rollback_to(&savepoint).unwrap();
                    now = before;
                }
            }
            if env.random().is_multiple_of(4) {
                trx.rollback().unwrap();
            } else {
                trx.commit().unwrap();
                rows = now;
            }
            if env.random().is_multiple_of(5) {
                views.push((base.transactions.versions().view(), rows.clone()));
            }
            if env.random().is_multiple_of(6) && !views.is_empty() {
                views.remove((env.random() % views.len() as u64) as usize);
            }
            for _ in 0..env.random() % 4 {
                base.transactions.purge().step().unwrap();
            }
            for (view, rows) in &views {
                for key in (b'a'..b'j').map(|key| vec![key]) {
                    let (mut value, visibility) = (Vec::new(), Visibility::View(view, None));
                    let versions = base.transactions.versions();
                    let found = versions
                        .get_in(&base.clustered, &key, visibility, Some(FieldSet::ALL), &mut value)
                        .unwrap();
                    let expected = rows.get(&key).map(|fields| encoded::encode(fields));
                    assert!(found.then_some(value) == expected, "seed {seed}: row {key:?} in a view");
                }
            }
        }
        drop(views);
        base.purge_all();
        let (mut found, model) = (Rows::new(), encode(&rows));
        for key in model.keys() {
            let mut value = Vec::new();
            assert!(value::get(&base.clustered, key, FieldSet::ALL, &mut value).unwrap());
            found.insert(key.clone(), value);
        }
        assert!(found == model, "seed {seed}");
        base.compare_pages().unwrap();
        assert_eq!(base.clustered.check().unwrap().entries, rows.len() as u64, "seed {seed}");
    }
}

/// While a call is blocked, the transaction in its way changes the field that the call keeps and has written to a
/// chain. The call keeps the new one, and writes its own long field once.
#[test]
fn a_blocked_call_keeps_the_chains_of_its_own_fields() {
    let (base, _) = base(1);
    let target = base.target(&[]);

    let mut writer = Trx::new(&base.transactions);
    let old = [vec![1; 10], vec![5; 900], vec![3; 10]];
    let changes: Vec<_> = old.iter().map(|field| FieldChange::Set(field)).collect();
    change_fields(&mut writer, &target, b"row", &changes, Mode::Insert);
    writer.commit().unwrap();
    let mut other = Trx::new(&base.transactions);
    let lock = base.lock_once(&mut other);
    let watched = RowTarget { watch: Some(&*lock), ..base.target(&[]) };
    let (long, short) = (vec![7; 70_000], vec![8; 200]);
    let wanted = [FieldChange::Set(&long), FieldChange::Keep, FieldChange::Set(&short)];
    let mut edit = Edit::write(Value::Fields(&wanted), Mode::Update);
    let mut trx = Trx::new(&base.transactions);
    let done = row::change(&mut trx, &watched, b"row", &mut edit, true);
    assert!(matches!(done, Err(Stop::Blocked(_))), "{done:?}");
    let pages = || tablespace::pages_in_use(&base.pool, base.clustered.space()).unwrap().len();
    let written = pages();
    assert!(written > 18, "{written} pages");
    let new = vec![6; 950];
    let changes = [FieldChange::Keep, FieldChange::Set(&new), FieldChange::Keep];
    change_fields(&mut other, &target, b"row", &changes, Mode::Update);
    other.commit().unwrap();
    row::change(&mut trx, &watched, b"row", &mut edit, true).unwrap();
    assert!(pages() <= written + 1, "the long field was written again");
    let mut value = Vec::new();
    assert!(value::get(&base.clustered, b"row", FieldSet::ALL, &mut value).unwrap());
    assert!(value == encoded::encode(&[long, new, short]));
    base.purge_all();
    base.compare_pages().unwrap();
    assert!(pages() < written + 1, "the chain of the earlier attempt is left");
}

/// The row with the old key is read once, and cannot change while the call is blocked.
#[test]
fn a_blocked_key_change_keeps_the_copies_of_its_fields() {
    let (base, _) = base(1);
    let target = base.target(&[]);
    let old = [vec![1; 10], vec![5; 70_000], vec![3; 900]];
    let mut writer = Trx::new(&base.transactions);
    let changes: Vec<_> = old.iter().map(|field| FieldChange::Set(field)).collect();
    change_fields(&mut writer, &target, b"old", &changes, Mode::Insert);
    writer.commit().unwrap();
    let pages = || tablespace::pages_in_use(&base.pool, base.clustered.space()).unwrap().len();
    let before = pages();
    let mut other = Trx::new(&base.transactions);
    let lock = base.lock_once(&mut other);
    let watched = RowTarget { watch: Some(&*lock), ..base.target(&[]) };
    let long = vec![8; 900];
    let wanted = [FieldChange::Set(&long), FieldChange::Keep, FieldChange::Keep];
    let mut edit = Edit::write(Value::Fields(&wanted), Mode::Insert).keeping_fields_of(b"old");
    let mut trx = Trx::new(&base.transactions);
    unblocked(&mut trx, |trx| row::change(trx, &target, b"old", &mut Edit::delete(), false).map(drop))
        .unwrap();
    let done = row::change(&mut trx, &watched, b"new", &mut edit, false);
    assert!(matches!(done, Err(Stop::Blocked(_))), "{done:?}");
    let copied = pages();
    assert!(copied > before + 17, "{copied} pages");
    other.rollback().unwrap();
    row::change(&mut trx, &watched, b"new", &mut edit, false).unwrap();
    assert_eq!(pages(), copied, "the fields were copied again");
    trx.commit().unwrap();
    base.purge_all();
    let mut value = Vec::new();
    assert!(value::get(&base.clustered, b"new", FieldSet::ALL, &mut value).unwrap());
    assert!(value == encoded::encode(&[&long, &old[1], &old[2]]));
    base.compare_pages().unwrap();
    assert_eq!(pages(), before + 1, "the chains of the old row are left, or those of the attempt");
}

/// The chains of a deletion that has ended may be freed at any time.
#[test]
fn fields_are_kept_only_from_a_row_that_the_transaction_has_deleted() {
    let (base, _) = base(1);
    let target = base.target(&[]);
    let long = vec![5; 20_000];
    let fields = [FieldChange::Set(b"a"), FieldChange::Set(&long)];
    let mut trx = Trx::new(&base.transactions);
    change_fields(&mut trx, &target, b"row", &fields, Mode::Insert);
    let keep = |trx: &mut Trx<'_>| {
        let keep = [FieldChange::Set(b"b"), FieldChange::Keep];
        let mut edit = Edit::write(Value::Fields(&keep), Mode::Insert).keeping_fields_of(b"row");
        row::change(trx, &target, b"new", &mut edit, false)
    };
    let is_refused = |done| matches!(done, Err(Stop::Failed(Error::Schema(SchemaError::NoRow(_)))));
    assert!(is_refused(keep(&mut trx)), "the row is not deleted");
    unblocked(&mut trx, |trx| row::change(trx, &target, b"row", &mut Edit::delete(), false).map(drop))
        .unwrap();
    trx.commit().unwrap();
    assert!(is_refused(keep(&mut Trx::new(&base.transactions))), "by a transaction that has ended");
}

/// Fields of up to 400 KB: a step of purge ends between two chains of one record, or within one.
#[test]
fn purge_is_cut_between_the_chains_of_one_record() {
    for seed in 0..4 {
        let (base, env) = base(seed);
        let target = base.target(&[]);
        let longs: Vec<Vec<u8>> = (0..5).map(|n| vec![n + 1; 200_000 + 50_000 * n as usize]).collect();
        let all: Vec<_> = longs.iter().map(|field| FieldChange::Set(field)).collect();
        let steps = |most: u64| {
            for _ in 0..env.random() % most {
                base.transactions.purge().step().unwrap();
                base.clustered.check().unwrap();
            }
        };
        let in_transaction = |fields: &[FieldChange<'_>], mode, commits: bool| {
            let mut trx = Trx::new(&base.transactions);
            change_fields(&mut trx, &target, b"row", fields, mode);
            steps(3);
            if commits { trx.commit().map(drop) } else { trx.rollback().map(drop) }.unwrap();
            steps(4);
        };
        in_transaction(&all, Mode::Insert, true);
        for round in 0..4 {
            let some: Vec<_> = all
                .iter()
                .map(|set| if env.random().is_multiple_of(2) { FieldChange::Keep } else { *set })
                .collect();
            in_transaction(&some, Mode::Update, !env.random().is_multiple_of(3));
            if round % 2 == 1 {
                let mut trx = Trx::new(&base.transactions);
                let delete = |trx: &mut Trx<'_>| {
                    row::change(trx, &target, b"row", &mut Edit::delete(), false).map(drop)
                };
                unblocked(&mut trx, delete).unwrap();
                trx.commit().unwrap();
                steps(5);
                in_transaction(&all, Mode::Insert, false);
                in_transaction(&all, Mode::Insert, true);
            }
            let mut value = Vec::new();
            assert!(value::get(&base.clustered, b"row", FieldSet::ALL, &mut value).unwrap());
            assert!(value == encoded::encode(&longs), "seed {seed}, round {round}");
        }
        base.purge_all();
        base.compare_pages().unwrap();
    }
}

/// The values of rows that were rolled back, before and after.
#[derive(Debug, Default)]
struct Noted(std::sync::Mutex<Vec<[Option<Vec<u8>>; 2]>>);

impl Follower for Noted {
    fn note(&self, _: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        self.0.lock().unwrap().push([before, after].map(|value| value.map(<[u8]>::to_vec)));
    }

    fn readings(&self) -> &[FieldSet] {
        &[]
    }

    fn notes_first_bytes(&self) -> bool {
        true
    }

    fn has_room_for(&self, _: &[u8], _: &[u64]) -> bool {
        panic!("no field is chosen");
    }

    fn begin_note(&self, _: &[u8]) -> Vec<u8> {
        panic!("no field is chosen");
    }

    fn note_read(&self, _: usize, _: Option<Vec<u8>>, _: Option<Vec<u8>>) {
        panic!("no field is chosen");
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn note_unreadable(&self, error: Error) {
        panic!("a value cannot be read: {error}");
    }

    fn is_full(&self) -> bool {
        false
    }

    fn wait_for_room(&self) {}
}

#[test]
fn a_follower_gets_the_fields_that_the_undone_change_has_kept() {
    let (base, _) = base(1);
    let target = base.target(&[]);
    let long = vec![5; 20_000];
    let mut writer = Trx::new(&base.transactions);
    let fields = [FieldChange::Set(b"a"), FieldChange::Set(&long)];
    change_fields(&mut writer, &target, b"row", &fields, Mode::Insert);
    writer.commit().unwrap();
    let noted = Arc::new(Noted::default());
    let _following = base.transactions.followers().follow(CLUSTERED, noted.clone());
    let mut trx = Trx::new(&base.transactions);
    change_fields(&mut trx, &target, b"row", &[FieldChange::Set(b"b"), FieldChange::Keep], Mode::Update);
    change_fields(&mut trx, &target, b"other", &fields, Mode::Insert);
    unblocked(&mut trx, |trx| row::change(trx, &target, b"row", &mut Edit::delete(), false).map(drop))
        .unwrap();
    trx.rollback().unwrap();
    let [a, b] = [b"a", b"b"].map(|first| Some(encoded::encode(&[&first[..], &long])));
    assert!(*noted.0.lock().unwrap() == [[None, b.clone()], [a.clone(), None], [b, a]]);
}

/// A call that fails after it has written many chains: what it logs besides their pages, and what their rollback logs,
/// was reserved.
#[test]
fn the_begin_of_each_chain_has_log_reserved() {
    let (base, _) = base(1);
    let target = base.target(&[]);
    let log = base.pool.context().log.clone();
    let limit = fields_limit(base.clustered.inline_limit());
    let field = vec![7; 100];
    for fails in [false, true] {
        let fields = vec![FieldChange::Set(&field); limit - usize::from(fails)];
        let pages = || tablespace::pages_in_use(&base.pool, base.clustered.space()).unwrap().len() as u64;
        let (before, pages_before) = ((log.end().0, log.reserved_ever.sum()), pages());
        base.transactions.fail_at(if fails { 2 } else { 0 });
        let mut edit = Edit::write(Value::Fields(&fields), Mode::Put);
        let done = row::change(&mut Trx::new(&base.transactions), &target, b"row", &mut edit, true);
        base.transactions.fail_at(0);
        assert_eq!(done.is_err(), fails, "{done:?}");
        let (appended, reserved) = (log.end().0 - before.0, log.reserved_ever.sum() - before.1);
        // The group of each page has a reservation of its own, of three pages, and takes 200 bytes at most.
        let chains = (pages() - pages_before).min(fields.len() as u64);
        assert!(chains > 30, "{chains} chains");
        let (appended, reserved) = (appended.saturating_sub(chains * 200), reserved - chains * 3 * 4096);
        assert!(appended <= reserved, "{appended} bytes of {reserved} that were reserved");
        base.purge_all();
    }
}
