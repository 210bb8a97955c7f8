//! A call of one of the driver's functions.

use std::ffi::c_int;

use super::{Outcome, STATE, State, code};

/// Does what a function does on the thread's machine.
pub(super) fn call(name: &'static str, function: impl FnOnce(&mut State) -> Outcome) -> c_int {
    STATE.with(|state| {
        let Ok(mut state) = state.try_borrow_mut() else { return code::UNKNOWN };
        let done = state.enter(name).and_then(|()| function(&mut state));
        done.err().unwrap_or(0)
    })
}

/// Writes a result.
///
/// # Safety
/// `at` must be null or a place for it.
pub(super) unsafe fn put<T>(at: *mut T, value: T) -> Outcome {
    if at.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: it is not null, and so a place.
    unsafe { at.write(value) };
    Ok(())
}
