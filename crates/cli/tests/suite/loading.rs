//! Errors for a model with more than one fault: tokenizer and weights are read in parallel, and the message does not
//! depend on which finishes first.

use crate::common::Home;
use crate::common::written::Written;

#[test]
fn what_is_wrong_with_the_words_is_said_first() {
    let home = Home::new();
    let path = home.path().join("wrong.gguf");
    let path = path.to_str().unwrap();
    let run = |model: Written, more: &[&str]| {
        model.to(path);
        home.run(&[&["run", path, "--raw", "-n", "1"], more, &["w1"]].concat())
    };
    let good = Written::SMALL;
    let (words, weights) = (Written { tokenizer: "odd", ..good }, Written { norm: f32::NAN, ..good });
    let both = Written { tokenizer: "odd", ..weights };
    run(good, &[]).ok();
    let of_words = run(words, &[]).failed();
    assert!(of_words.contains("tokenizer \"odd\" is not supported"), "{of_words}");
    let of_weights = run(weights, &[]).failed();
    assert!(of_weights.contains("element 0 is NaN: the file is damaged"), "{of_weights}");
    let of_room = run(good, &["-c", "4096"]).failed();
    assert!(of_room.contains("a context of 4096 tokens is asked for"), "{of_room}");
    for _ in 0..10 {
        assert_eq!(run(both, &[]).failed(), of_words);
    }
    assert_eq!(run(both, &["-c", "4096"]).failed(), of_words);
}
