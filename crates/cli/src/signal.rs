//! Signals that ask the program to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Listener for signals that ask the program to stop. Signals that are ignored when it is made stay ignored: `nohup`
/// relies on that, and so do shells for background jobs of scripts.
#[cfg(unix)]
pub(crate) struct Signals {
    term: Option<tokio::signal::unix::Signal>,
    hangup: Option<tokio::signal::unix::Signal>,
    interrupt: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    /// Starts listening; needs a tokio runtime.
    pub(crate) fn listen() -> Signals {
        use tokio::signal::unix::{SignalKind, signal};
        // A signal that cannot be listened to keeps its default action.
        let listen = |kind: SignalKind| {
            let ignored = is_ignored(kind.as_raw_value());
            (!ignored).then(|| signal(kind).ok()).flatten()
        };
        let (term, hangup) = (listen(SignalKind::terminate()), listen(SignalKind::hangup()));
        Signals { term, hangup, interrupt: listen(SignalKind::interrupt()) }
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        let wait = async |s: &mut Option<tokio::signal::unix::Signal>| match s {
            Some(s) => drop(s.recv().await),
            None => std::future::pending().await,
        };
        tokio::select! {
            () = wait(&mut self.term) => "SIGTERM",
            () = wait(&mut self.hangup) => "SIGHUP",
            () = wait(&mut self.interrupt) => "Ctrl-C",
        }
    }
}

/// True if a signal is ignored (`SIG_IGN`).
#[cfg(unix)]
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all zeros is a valid `libc::sigaction`, which is plain data; without a new action the call only writes
    // `now`.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

/// Listener for Ctrl-C.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn listen() -> Signals {
        Signals
    }

    /// Waits for Ctrl-C and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(_) => std::future::pending().await,
        }
    }
}

/// A flag that becomes true at a stop signal, so that no incomplete file is left.
pub(crate) fn stopping() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let pressed = stop.clone();
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(async { Signals::listen().next().await });
            pressed.store(true, Ordering::Relaxed);
        }
    };
    // If there is no such thread, a signal ends the program at once.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(wait);
    stop
}

/// Ends the program at once, without exit handlers: a driver that still works on another thread may crash in its own.
pub(crate) fn exit_now(status: i32) -> ! {
    #[cfg(unix)]
    // SAFETY: the call does not return, and runs nothing of this process.
    unsafe {
        libc::_exit(status)
    }
    #[cfg(not(unix))]
    std::process::exit(status)
}
