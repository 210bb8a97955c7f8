//! Engine start-up: `Info` is computed while the model loads, and of several errors always the same one is reported.

use std::io::Error;
use std::sync::mpsc::channel;

use crate::common::faulty::Faulty;
use crate::common::{info, limits, model, runner};
use tallow_engine::engine::spawn;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::Limits;

/// Regardless of which of the two finishes first.
#[test]
fn of_two_errors_the_one_about_the_engine_is_told() {
    for loaded_first in [true, false] {
        let (done, when_done) = channel::<()>();
        let early: Box<dyn FnOnce() + Send> = Box::new(move || drop(done));
        let late: Box<dyn FnOnce() + Send> = Box::new(move || _ = when_done.recv());
        let (load, find_out) = if loaded_first { (early, late) } else { (late, early) };
        let runner = move || {
            load();
            Err::<(Runner<Faulty>, Limits), _>(Error::other("the weights are wrong"))
        };
        let info = || {
            find_out();
            Err(Error::other("the words are wrong"))
        };
        assert_eq!(spawn(info, runner).unwrap_err().to_string(), "the words are wrong");
    }
}

#[test]
fn each_error_alone_is_told() {
    let model = model();
    let wrong = || Error::other("wrong");
    let known = info(&model, 64);
    let failed = spawn(|| Ok(known), move || Err::<(Runner<Faulty>, Limits), _>(wrong()));
    assert_eq!(failed.unwrap_err().to_string(), "wrong");
    let failed = spawn(|| Err(wrong()), move || Ok((runner(&model), limits())));
    assert_eq!(failed.unwrap_err().to_string(), "wrong");
}
