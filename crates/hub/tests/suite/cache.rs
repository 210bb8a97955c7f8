//! Finding, listing and removing cached models, also where other programs put them there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::stand_in::*;
use tallow_hub::{Cache, CachedModel, HubError, ModelRef, Removed};

const OTHER: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// A model's folder as another program leaves it: (commit, name, blob, content) of each file.
fn lay(root: &Path, repo: &str, files: &[(&str, &str, &str, &str)]) -> PathBuf {
    let folder = root.join(format!("models--{}", repo.replace('/', "--")));
    for (commit, name, blob, content) in files {
        let link = folder.join("snapshots").join(commit).join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        fs::create_dir_all(folder.join("blobs")).unwrap();
        fs::write(folder.join("blobs").join(blob), content).unwrap();
        symlink(format!("../../blobs/{blob}"), link).unwrap();
    }
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    folder
}

fn model(name: &str) -> ModelRef {
    ModelRef::parse(name).unwrap()
}

fn remove(cache: &Cache, name: &str) -> Result<Removed, HubError> {
    cache.remove(&model(name))
}

/// The list in short form.
fn listed(cache: &Cache) -> Vec<String> {
    let short = |m: CachedModel| {
        format!("{} {} {} {}", m.name, m.files, m.bytes, if m.complete { "ok" } else { "part" })
    };
    cache.list().unwrap().into_iter().map(short).collect()
}

#[test]
fn an_empty_cache_has_nothing() {
    let (folder, cache) = cache();
    assert_eq!(cache.list().unwrap(), []);
    assert_eq!(Cache::at(folder.path().join("none")).list().unwrap(), []);
    assert_eq!(cache.find(&model("org/m")).unwrap(), None);
    insta::assert_snapshot!(remove(&cache, "org/m:Q8_0").unwrap_err(), @"org/m:Q8_0 is not in the cache. `tallow list` shows what is");
}

#[test]
fn what_other_programs_fetched_is_found_when_it_is_whole() {
    let (folder, cache) = cache();
    let shard = "model-00001-of-00002.safetensors";
    let root = lay(folder.path(), "org/m", &[(COMMIT, "config.json", "a", "{}"), (COMMIT, shard, "b", "11")]);
    assert_eq!(cache.find(&model("org/m")).unwrap(), None, "a shard is missing");
    lay(folder.path(), "org/m", &[(COMMIT, "model-00002-of-00002.safetensors", "c", "22")]);
    let found = cache.find(&model("org/m")).unwrap().unwrap();
    assert_eq!(found.path, root.join("snapshots").join(COMMIT));
    assert_eq!(found.files.len(), 3);
    // A broken symlink is not a file.
    fs::remove_file(root.join("blobs/c")).unwrap();
    assert_eq!(cache.find(&model("org/m")).unwrap(), None);
    // An invalid ref, or a commit that does not exist.
    fs::write(root.join("refs/main"), "../../../etc").unwrap();
    assert_eq!(cache.find(&model("org/m")).unwrap(), None);
    assert_eq!(cache.find(&model(&format!("org/m@{OTHER}"))).unwrap(), None);
}

#[test]
fn without_a_quantization_the_one_that_is_there_is_found() {
    let (folder, cache) = cache();
    lay(
        folder.path(),
        "org/m",
        &[
            (COMMIT, "m-Q8_0.gguf", "a", "8"),
            (COMMIT, "m-Q4_K_M-00001-of-00002.gguf", "b", "4"),
            (COMMIT, "config.json", "c", "{}"),
        ],
    );
    let found = cache.find(&model("org/m")).unwrap().unwrap();
    assert!(found.path.ends_with("m-Q8_0.gguf"), "the usual one is not whole");
    assert!(cache.find(&model("org/m:q8_0")).unwrap().is_some());
    assert_eq!(cache.find(&model("org/m:Q4_K_M")).unwrap(), None);
    assert_eq!(cache.find(&model("org/m:Q2_K")).unwrap(), None);
}

#[test]
fn two_that_would_do_are_told_apart_by_the_user() {
    let (folder, cache) = cache();
    lay(folder.path(), "org/m", &[(COMMIT, "a-Q4_0.gguf", "a", "1"), (COMMIT, "b-Q4_0.gguf", "b", "22")]);
    assert!(matches!(cache.find(&model("org/m")), Err(HubError::Ambiguous { .. })));
    assert_eq!(listed(&cache), ["org/m:a-Q4_0 1 1 ok", "org/m:b-Q4_0 1 2 ok"]);
    for row in cache.list().unwrap() {
        assert_eq!(cache.find(&model(&row.name)).unwrap().unwrap().path, row.path);
    }
    assert_eq!(remove(&cache, "org/m:b-Q4_0").unwrap(), Removed { files: 1, bytes: 2 });
    assert_eq!(listed(&cache), ["org/m:Q4_0 1 1 ok"]);
}

#[test]
fn the_list_counts_shared_content_once() {
    let (folder, cache) = cache();
    lay(
        folder.path(),
        "org/m",
        &[
            (COMMIT, "config.json", "a", "{}"),
            (COMMIT, "model.safetensors", "w", "12345"),
            (OTHER, "config.json", "b", "{ }"),
            (OTHER, "model.safetensors", "w", "12345"),
        ],
    );
    lay(folder.path(), "org/g", &[(COMMIT, "g-Q8_0.gguf", "q", "8"), (COMMIT, "README.md", "r", "hello")]);
    lay(folder.path(), "org/t", &[(COMMIT, "tokenizer.json", "t", "[]")]);
    fs::write(lay(folder.path(), "gpt2", &[]).join("refs/main"), OTHER).unwrap();
    fs::create_dir_all(folder.path().join("models--gpt2/blobs")).unwrap();
    fs::write(folder.path().join("models--gpt2/blobs/abc.incomplete"), "123").unwrap();
    for other in ["datasets--org--d/snapshots", "models--bad--name--x/snapshots", ".locks", "blobs/ab"] {
        fs::create_dir_all(folder.path().join(other)).unwrap();
    }
    assert_eq!(listed(&cache), ["gpt2 1 3 part", "org/g:Q8_0 1 1 ok", "org/m 3 10 ok", "org/t 1 2 part"]);
    let row = cache.list().unwrap().remove(1);
    assert_eq!(row.quant.as_deref(), Some("Q8_0"));
    let written = fs::metadata(folder.path().join("models--org--g/blobs/q")).unwrap().modified().unwrap();
    assert_eq!(row.modified, written);
}

#[test]
fn removing_a_quantization_leaves_the_others() {
    let (folder, cache) = cache();
    let root = lay(
        folder.path(),
        "org/m",
        &[
            (COMMIT, "m-Q8_0.gguf", "shared", "12345678"),
            (COMMIT, "m-Q4_0-00001-of-00002.gguf", "x", "1"),
            (COMMIT, "m-Q4_0-00002-of-00002.gguf", "y", "22"),
            (OTHER, "renamed-F16.gguf", "shared", "12345678"),
        ],
    );
    assert_eq!(remove(&cache, "org/m:q4_0").unwrap(), Removed { files: 2, bytes: 3 });
    assert!(!root.join("blobs/x").exists() && !root.join("blobs/y").exists());
    assert_eq!(listed(&cache), ["org/m:F16 1 8 ok", "org/m:Q8_0 1 8 ok"]);
    // Its blob is still referenced, so nothing is freed; its snapshot becomes empty, so that and the ref are removed.
    assert_eq!(remove(&cache, "org/m:Q8_0").unwrap(), Removed::default());
    assert!(root.join("blobs/shared").exists());
    assert!(!root.join("snapshots").join(COMMIT).exists() && !root.join("refs/main").exists());
    assert!(matches!(remove(&cache, "org/m:Q8_0"), Err(HubError::NotCached { .. })));
    assert_eq!(remove(&cache, "org/m:F16").unwrap(), Removed { files: 1, bytes: 8 });
    assert_eq!(listed(&cache), Vec::<String>::new());
}

#[test]
fn removing_a_revision_leaves_the_others() {
    let (folder, cache) = cache();
    let files = [
        (COMMIT, "config.json", "a", "{}"),
        (COMMIT, "model.safetensors", "w", "12345"),
        (OTHER, "config.json", "a", "{}"),
        (OTHER, "model.safetensors", "v", "1234567"),
    ];
    let root = lay(folder.path(), "org/m", &files);
    assert_eq!(remove(&cache, &format!("org/m@{OTHER}")).unwrap(), Removed { files: 1, bytes: 7 });
    assert!(cache.find(&model("org/m")).unwrap().is_some());
    assert_eq!(remove(&cache, "org/m@main").unwrap(), Removed { files: 2, bytes: 7 });
    assert_eq!(fs::read_dir(root.join("blobs")).unwrap().count(), 0);
}

#[test]
fn removing_a_model_takes_all_of_it() {
    let (folder, cache) = cache();
    let root =
        lay(folder.path(), "org/m", &[(COMMIT, "config.json", "a", "{}"), (COMMIT, "x.gguf", "b", "123")]);
    fs::write(root.join("blobs/c.incomplete"), "1234").unwrap();
    // A regular file, as on systems without symlinks.
    fs::write(root.join("snapshots").join(COMMIT).join("loose.json"), "12345").unwrap();
    lay(folder.path(), "org/m2", &[(COMMIT, "x.gguf", "b", "123")]);
    assert_eq!(remove(&cache, "org/m").unwrap(), Removed { files: 4, bytes: 14 });
    assert!(!root.exists());
    assert_eq!(listed(&cache), ["org/m2:x 1 3 ok"]);
}

#[test]
fn removing_never_leaves_the_cache() {
    let (folder, cache) = cache();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    symlink(outside.path(), folder.path().join("models--org--m")).unwrap();
    for name in ["org/m", "org/m:Q8_0", "org/m@main"] {
        assert!(matches!(remove(&cache, name), Err(HubError::Outside { .. })), "{name}");
    }
    // Symlinks inside a model: the links are removed, their targets stay.
    let root = lay(folder.path(), "org/n", &[(COMMIT, "n-Q4_0.gguf", "a", "1")]);
    symlink(outside.path().join("precious"), root.join("snapshots").join(COMMIT).join("n-Q8_0.gguf"))
        .unwrap();
    symlink(outside.path(), root.join("snapshots").join(COMMIT).join("folder")).unwrap();
    symlink(outside.path().join("precious"), root.join("blobs/shared")).unwrap();
    symlink("../../blobs/shared", root.join("snapshots").join(COMMIT).join("n-F16.gguf")).unwrap();
    assert_eq!(remove(&cache, "org/n:Q8_0").unwrap(), Removed::default());
    assert_eq!(remove(&cache, "org/n:F16").unwrap(), Removed::default());
    assert!(!root.join("blobs/shared").is_symlink());
    assert_eq!(remove(&cache, "org/n").unwrap(), Removed { files: 1, bytes: 1 });
    assert_eq!(fs::read_to_string(outside.path().join("precious")).unwrap(), "x");
}

#[test]
fn a_store_that_models_share_counts_as_inside() {
    // Newer versions of the Python client put large files into `blobs/` of the cache itself and link to them.
    let (folder, cache) = cache();
    let root = lay(folder.path(), "org/m", &[(COMMIT, "m-Q8_0.gguf", "etag", "")]);
    fs::create_dir_all(folder.path().join("blobs/ab")).unwrap();
    fs::write(folder.path().join("blobs/ab/xet"), "12345").unwrap();
    fs::remove_file(root.join("blobs/etag")).unwrap();
    symlink("../../blobs/ab/xet", root.join("blobs/etag")).unwrap();
    assert!(cache.find(&model("org/m")).unwrap().is_some());
    assert_eq!(listed(&cache), ["org/m:Q8_0 1 5 ok"]);
    assert_eq!(remove(&cache, "org/m").unwrap(), Removed::default());
    assert!(folder.path().join("blobs/ab/xet").exists());
}

#[test]
fn a_relative_cache_works_too() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let name = folder.path().file_name().unwrap();
    lay(folder.path(), "org/m", &[(COMMIT, "m-Q8_0.gguf", "a", "1"), (COMMIT, "m-Q4_0.gguf", "b", "22")]);
    for root in [PathBuf::from(".").join(name), PathBuf::from("src/..").join(name)] {
        let cache = Cache::at(root);
        assert!(cache.find(&model("org/m")).unwrap().is_some());
        let row = cache.list().unwrap().pop().unwrap();
        assert_eq!(remove(&cache, &row.name).unwrap().files, 1);
    }
    assert_eq!(fs::read_dir(folder.path().join("models--org--m/blobs")).unwrap().count(), 0);
}
