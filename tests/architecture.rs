//! The rules of ARCHITECTURE.md about which file may name what.

use std::fs;
use std::path::{Path, PathBuf};

/// All Rust sources below `src`, with their paths from there.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, root: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(dir).expect("the source folder can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, root, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a source file is text");
                found.push((path.strip_prefix(root).expect("below src").to_owned(), text));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    assert!(found.len() > 30, "the walk found {} files only", found.len());
    found
}

/// The lines of `text` outside comments and of its tests that contain one of `words`.
fn lines_with(text: &str, words: &[&str]) -> Vec<String> {
    let code = text.split("\n#[cfg(test)]").next().unwrap_or(text);
    let code = code.split("\n#[cfg(all(test").next().unwrap_or(code);
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .filter(|line| words.iter().any(|word| line.contains(word)))
        .map(str::to_owned)
        .collect()
}

/// Checks that the files which `applies` accepts name none of `words`.
fn forbid(words: &[&str], why: &str, applies: impl Fn(&Path) -> bool) {
    let mut looked = 0;
    for (path, text) in sources() {
        if applies(&path) {
            looked += 1;
            let found = lines_with(&text, words);
            assert!(found.is_empty(), "{} names {found:?}: {why}", path.display());
        }
    }
    assert!(looked > 0, "no file was looked at for {words:?}");
}

fn is_test(path: &Path) -> bool {
    path.ends_with("tests.rs") || path.ends_with("models.rs")
}

#[test]
fn only_sync_names_locks_atomics_and_loom() {
    let words = ["std::sync", "parking_lot::", "loom::"];
    forbid(&words, "locks and atomics come from crate::sync", |path| {
        !path.starts_with("sync") && path != Path::new("sync.rs") && !is_test(path)
    });
}

#[test]
fn heap_and_order_know_no_driver() {
    for part in ["heap", "order"] {
        let words = ["crate::backend", "crate::pool", "Driver", "unsafe "];
        forbid(&words, "heap and order return decisions; only the pool acts", |path| {
            path.starts_with(part) && !is_test(path)
        });
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(part).join("mod.rs");
        let text = fs::read_to_string(root).expect("a source file is text");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{part} forbids unsafe code");
    }
    forbid(&["crate::heap"], "order knows no blocks", |path| path.starts_with("order"));
}

#[test]
fn the_backends_know_no_pool() {
    let words = ["crate::pool", "crate::buffer", "crate::heap", "crate::order", "crate::quiescent"];
    forbid(&words, "nothing points up", |path| path.starts_with("backend"));
}

#[test]
fn only_the_cuda_backend_calls_foreign_functions() {
    forbid(&["extern \"C\"", "sys::cu"], "the CUDA backend is the only FFI", |path| {
        !path.starts_with("backend/cuda") && !is_test(path)
    });
}
