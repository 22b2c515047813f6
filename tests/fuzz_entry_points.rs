//! The fuzz targets' entry points, run under `cargo test`: over the committed corpus, and over bytes by
//! chance.

use std::fs;
use std::path::Path;

use streampool::check::{TARGETS, fuzz};

fn fuzz_dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

#[test]
fn the_corpus_passes() {
    for (name, entry) in TARGETS {
        let source = fuzz_dir().join("fuzz_targets").join(format!("{name}.rs"));
        let text = fs::read_to_string(&source).expect("each entry has a fuzz target");
        assert!(
            text.contains(&format!("fuzz({name:?}")),
            "{} runs another entry",
            source.display()
        );
        let corpus = fs::read_dir(fuzz_dir().join("corpus").join(name)).expect("there is a corpus");
        let files: Vec<_> = corpus.map(|file| file.expect("an entry").path()).collect();
        assert!(files.len() >= 4, "the corpus of {name} has {} files", files.len());
        for file in files {
            entry(&fs::read(file).expect("a corpus file can be read"));
        }
    }
}

#[test]
fn any_bytes_pass() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for (name, _) in TARGETS {
        fuzz(name, &[]);
        for round in 0..60 {
            let len = round * 9 % 517;
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    (random >> 24) as u8
                })
                .collect();
            fuzz(name, &bytes);
        }
    }
}
