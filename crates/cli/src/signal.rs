//! How a program is asked to stop.

/// The signals that ask a program to stop. Those that are ignored when this is made stay so: `nohup` asks for that, and
/// shells do for what scripts start in the background.
#[cfg(unix)]
pub(crate) struct Signals {
    term: Option<tokio::signal::unix::Signal>,
    hangup: Option<tokio::signal::unix::Signal>,
    interrupt: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on; within a runtime.
    pub(crate) fn listen() -> Signals {
        use tokio::signal::unix::{SignalKind, signal};
        // Where one cannot be listened to, the system's own way of ending us remains.
        let listen = |kind: SignalKind| {
            let ignored = is_ignored(kind.as_raw_value());
            (!ignored).then(|| signal(kind).ok()).flatten()
        };
        let (term, hangup) = (listen(SignalKind::terminate()), listen(SignalKind::hangup()));
        Signals { term, hangup, interrupt: listen(SignalKind::interrupt()) }
    }

    /// Waits for the next one, and says which.
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

/// Is a signal ignored?
#[cfg(unix)]
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: zeros are a value of this plain struct, and the call writes nothing but it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

/// What asks a program to stop.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn listen() -> Signals {
        Signals
    }

    /// Waits for the next one, and says which.
    pub(crate) async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(_) => std::future::pending().await,
        }
    }
}
