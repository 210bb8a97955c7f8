//! Pages and states in files: found again, never believed, never more than may be.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::cache_tier::key::{Fingerprint, fingerprint};

const SHAPE: RecordShape = RecordShape { tokens: 4, page: 40, state: Some(100) };
const ROOMY: u64 = 1 << 20;

fn model() -> Fingerprint {
    fingerprint([&b"a model"[..]])
}

fn opened(dir: &Path, model: Fingerprint, limit: u64) -> Result<RecordStore, TierError> {
    let folder = Folder::open(dir)?;
    let keys = Keys::new(folder.secret().unwrap(), model);
    RecordStore::open(folder, keys, SHAPE, limit, Arc::default())
}

fn open(dir: &Path) -> RecordStore {
    opened(dir, model(), ROOMY).unwrap()
}

/// A sequence's pages, each second one with the state after it, and their contents.
fn sequence(store: &RecordStore, salt: Option<&str>, pages: u32) -> Vec<(RecordName, Vec<u8>)> {
    let mut after = store.keys.start(salt);
    let content = |seed: u32, bytes: usize| (0..bytes as u32).map(|at| (seed * 7 + at) as u8).collect();
    let page = |i: u32| {
        let tokens: Box<[u32]> = (0..4).map(|at| 1000 * i + at).collect();
        let page = store.keys.page_name(after, tokens.clone());
        after = page.key;
        let state = store.keys.state_name(after, tokens);
        let state = (i % 2 == 1).then(|| (state, content(i + 100, 100)));
        [Some((page, content(i, 40))), state].into_iter().flatten()
    };
    (0..pages).flat_map(page).collect()
}

/// Ends of the records of a segment.
fn ends(records: &[(RecordName, Vec<u8>)]) -> Vec<usize> {
    let mut end = START;
    let next = |(name, _): &(RecordName, Vec<u8>)| {
        end += SHAPE.record(name.kind);
        end
    };
    records.iter().map(next).collect()
}

fn save_all(store: &mut RecordStore, pages: &[(RecordName, Vec<u8>)]) {
    pages.iter().for_each(|(name, content)| store.save(name, content).unwrap());
}

/// Contents of records, up to the first that cannot be had.
fn load_all(store: &mut RecordStore, pages: &[(RecordName, Vec<u8>)]) -> usize {
    let right = |(name, content): &(RecordName, Vec<u8>)| {
        let loaded = store.load(name)?;
        assert_eq!(&loaded, content, "wrong content");
        Some(())
    };
    pages.iter().map_while(right).count()
}

/// The only segment.
fn segment(dir: &Path) -> PathBuf {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|e| e == "pages")).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// A folder with a segment of three pages, and the state after the second one: four records.
fn saved(dir: &TempDir) -> (Vec<(RecordName, Vec<u8>)>, PathBuf) {
    let mut store = open(dir.path());
    let pages = sequence(&store, None, 3);
    save_all(&mut store, &pages);
    (pages, segment(dir.path()))
}

#[test]
fn what_is_saved_is_found_again() {
    let dir = TempDir::new().unwrap();
    let (pages, segment) = saved(&dir);
    let mut store = open(dir.path());
    assert_eq!((store.counts(), load_all(&mut store, &pages)), ((3, 1), 4));
    // Other pages are not there, whatever is the same about them.
    let salted = sequence(&store, Some("key 1"), 3);
    assert_eq!(load_all(&mut store, &salted), 0);
    let [_, _, state, page] = &pages[..] else { panic!("{pages:?}") };
    assert_eq!((state.0.kind, page.0.kind), (Kind::State, Kind::Page));
    for ((name, content), kind) in [(state, Kind::Page), (page, Kind::State)] {
        for wrong in [
            RecordName { after: pages[0].0.key, ..name.clone() },
            RecordName { tokens: [1, 2, 3, 4].into(), ..name.clone() },
            RecordName { kind, ..name.clone() },
        ] {
            store.save(name, content).unwrap();
            // A key with something else behind it: as if two had the same digest.
            assert_eq!(store.load(&wrong), None);
            assert!(!segment.exists());
        }
        store.save(name, content).unwrap();
        assert_eq!(store.load(name), Some(content.clone()));
    }
}

/// With a state of another size, or none, nothing in a file is what it was.
#[test]
fn a_file_of_another_shape_is_refused() {
    for state in [None, Some(99)] {
        let dir = TempDir::new().unwrap();
        let (pages, segment) = saved(&dir);
        let folder = Folder::open(dir.path()).unwrap();
        let keys = Keys::new(folder.secret().unwrap(), model());
        let shape = RecordShape { state, ..SHAPE };
        let mut store = RecordStore::open(folder, keys, shape, ROOMY, Arc::default()).unwrap();
        assert_eq!((store.counts(), store.load(&pages[0].0)), ((0, 0), None));
        assert!(!segment.exists());
    }
}

#[test]
#[cfg(unix)]
fn nobody_else_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let own = dir.path().join("a/b");
    let mut store = open(&own);
    let pages = sequence(&store, None, 1);
    save_all(&mut store, &pages);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&own), 0o700);
    let files: Vec<PathBuf> = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "the lock, the secret and a segment: {files:?}");
    files.iter().for_each(|file| assert_eq!(mode(file), 0o600, "{file:?}"));
}

/// Each byte of a file is wrong in turn: its page or state is not found, and no other content is ever returned.
#[test]
fn every_damaged_byte_is_noticed() {
    let dir = TempDir::new().unwrap();
    let (pages, segment) = saved(&dir);
    let whole = fs::read(&segment).unwrap();
    let ends = ends(&pages);
    assert_eq!(whole.len(), ends[3]);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&segment, &bytes).unwrap();
        let mut store = open(dir.path());
        let record = ends.iter().filter(|end| **end <= at).count();
        assert!(load_all(&mut store, &pages) <= record, "byte {at}");
        assert_eq!(store.load(&pages[record].0), None, "byte {at}");
        assert_eq!(store.counts.refused_bytes.load(Ordering::Relaxed), whole.len() as u64, "byte {at}");
        assert!(!segment.exists(), "byte {at}");
        // It is computed again, and saved again.
        save_all(&mut store, &pages);
        assert_eq!(load_all(&mut store, &pages), 4, "byte {at}");
    }
}

/// As a process that is killed, or a power cut, leaves it: cut anywhere, or with zeros that were never written.
#[test]
fn half_a_record_is_none() {
    let dir = TempDir::new().unwrap();
    let (pages, segment) = saved(&dir);
    let whole = fs::read(&segment).unwrap();
    let ends = ends(&pages);
    for end in 0..whole.len() {
        fs::write(&segment, &whole[..end]).unwrap();
        let mut store = open(dir.path());
        let left = ends.iter().filter(|last| **last <= end).count();
        assert_eq!(load_all(&mut store, &pages), left, "cut at {end}");
        // The next are appended behind the last whole one.
        save_all(&mut store, &pages);
        drop(store);
        assert_eq!(load_all(&mut open(dir.path()), &pages), 4, "cut at {end}");

        let mut zeros = whole[..end].to_vec();
        zeros.resize(whole.len(), 0);
        fs::write(&segment, &zeros).unwrap();
        // The bytes that are missing may have been zeros.
        let intact = ends.iter().filter(|last| zeros[..**last] == whole[..**last]).count();
        assert!(load_all(&mut open(dir.path()), &pages) <= intact, "zeros from {end}");
    }
}

#[test]
fn other_models_and_other_folders_share_nothing() {
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (pages, segment) = saved(&dir);
    let other = fingerprint([&b"another model"[..]]);
    let mut store = opened(dir.path(), other, ROOMY).unwrap();
    assert_eq!((store.counts(), load_all(&mut store, &pages)), ((0, 0), 0));
    // They stay, and count.
    assert_eq!((store.others.len(), store.bytes()), (1, fs::metadata(&segment).unwrap().len()));
    drop(store);
    // Under the other model's name they are no good either.
    fs::copy(&segment, dir.path().join(SegmentFile::name(&other, 0))).unwrap();
    let store = opened(dir.path(), other, ROOMY).unwrap();
    assert_eq!((store.counts(), store.counts.refused_bytes.load(Ordering::Relaxed) > 0), ((0, 0), true));
    drop(store);
    // Nor in a folder with another secret.
    drop(open(elsewhere.path()));
    fs::copy(&segment, elsewhere.path().join(segment.file_name().unwrap())).unwrap();
    assert_eq!(open(elsewhere.path()).counts(), (0, 0));
    assert_eq!(load_all(&mut open(dir.path()), &pages), 4);
}

/// Bytes of all segments in a folder.
fn used(dir: &Path) -> u64 {
    let all = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let all = all.filter(|entry| entry.path().extension().is_some_and(|e| e == "pages"));
    all.map(|entry| entry.metadata().unwrap().len()).sum()
}

#[test]
fn the_least_recently_used_pages_go() {
    let dir = TempDir::new().unwrap();
    // A page and the state after it fit in each segment.
    let least = SEGMENTS * (START + SHAPE.record(Kind::Page) + SHAPE.record(Kind::State)) as u64;
    let too_small = opened(dir.path(), model(), least - 1).err();
    assert_eq!(too_small, Some(TierError::TooSmall { limit: least - 1, least }));
    let limit = 4 * least;
    // Pages of another model go first.
    let other = fingerprint([&b"another model"[..]]);
    let mut store = opened(dir.path(), other, limit).unwrap();
    let pages = sequence(&store, None, 10);
    save_all(&mut store, &pages);
    drop(store);

    let mut store = opened(dir.path(), model(), limit).unwrap();
    let pages = sequence(&store, None, 1500);
    for (name, content) in &pages {
        store.save(name, content).unwrap();
        // The first page is in use all the time.
        assert!(lock(&store.index).touch(&pages[0].0.key, SystemTime::now()));
        assert!(used(dir.path()) <= limit);
        assert_eq!(store.bytes(), used(dir.path()));
    }
    assert!(store.others.is_empty());
    let there = |store: &RecordStore| -> Vec<bool> {
        pages.iter().map(|(name, _)| lock(&store.index).has(&name.key)).collect()
    };
    let kept = there(&store);
    let count = kept.iter().filter(|kept| **kept).count();
    assert!(kept[0] && !kept[100] && kept[pages.len() - 1], "the first, and the last");
    let bytes: usize = pages
        .iter()
        .zip(&kept)
        .filter(|(_, kept)| **kept)
        .map(|((name, _), _)| SHAPE.record(name.kind))
        .sum();
    assert!(bytes as u64 > limit * 3 / 4, "{bytes} of {limit} bytes");
    let (all, states) = store.counts();
    assert!(all + states == count && states > count / 4, "{all} pages and {states} states");
    store.note_use();
    drop(store);
    // The next start knows when they were used. With less room, what was used last stays.
    let store = opened(dir.path(), model(), least).unwrap();
    assert!(used(dir.path()) <= least && there(&store)[0]);
}

#[test]
fn one_process_at_a_time() {
    let dir = TempDir::new().unwrap();
    let first = open(dir.path());
    let second = opened(dir.path(), model(), ROOMY).err();
    assert_eq!(second, Some(TierError::InUse(dir.path().canonicalize().unwrap())));
    drop(first);
    open(dir.path());
}

#[test]
#[cfg(unix)]
fn links_are_not_followed_and_shared_folders_are_not_used() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (dir, target) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (pages, segment) = saved(&dir);
    let elsewhere = target.path().join("file");
    // A segment that is a link is not read, and what it leads to stays.
    fs::rename(&segment, &elsewhere).unwrap();
    symlink(&elsewhere, &segment).unwrap();
    let mut store = open(dir.path());
    assert_eq!(load_all(&mut store, &pages), 0);
    // The next segment would have its name.
    assert!(store.save(&pages[0].0, &pages[0].1).is_err());
    drop(store);
    assert_eq!(fs::metadata(&elsewhere).unwrap().len(), ends(&pages)[3] as u64);
    fs::remove_file(&segment).unwrap();
    // So is a secret: a new one takes its place.
    let secret = dir.path().join("tallow.secret");
    let old = fs::read(&secret).unwrap();
    fs::rename(&secret, target.path().join("secret")).unwrap();
    symlink(target.path().join("secret"), &secret).unwrap();
    drop(open(dir.path()));
    assert!(fs::symlink_metadata(&secret).unwrap().is_file() && fs::read(&secret).unwrap() != old);
    // One that others could read is not used any more, nor is one of another length.
    for spoil in [
        &(|| fs::set_permissions(&secret, fs::Permissions::from_mode(0o644))) as &dyn Fn() -> io::Result<()>,
        &|| fs::write(&secret, b"short"),
    ] {
        let old = fs::read(&secret).unwrap();
        spoil().unwrap();
        drop(open(dir.path()));
        assert_ne!(fs::read(&secret).unwrap(), old);
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let unusable = |dir: &Path| match opened(dir, model(), ROOMY) {
        Err(TierError::Unusable { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(unusable(dir.path()).contains("chmod go-w"));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_file(dir.path().join("tallow.lock")).unwrap();
    symlink(&elsewhere, dir.path().join("tallow.lock")).unwrap();
    assert!(unusable(dir.path()).contains("not a regular file"));
    unusable(&elsewhere);
}

/// A file that cannot be written costs its page, and nothing else.
#[test]
fn what_cannot_be_written_is_not_there() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let pages = sequence(&store, None, 2);
    let taken = dir.path().join(SegmentFile::name(&model(), 0));
    fs::create_dir(&taken).unwrap();
    assert!(store.save(&pages[0].0, &pages[0].1).is_err());
    assert_eq!((load_all(&mut store, &pages), store.counts()), (0, (0, 0)));
    fs::remove_dir(&taken).unwrap();
    save_all(&mut store, &pages);
    assert_eq!(load_all(&mut store, &pages), 3);
    // Of another size than the model's: a mistake of ours, and not one in a file.
    assert!(store.save(&pages[0].0, &[0; 39]).is_err());
    assert!(store.save(&pages[2].0, &[0; 40]).is_err());
}
