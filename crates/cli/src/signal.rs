//! How a program is asked to stop.

/// Waits until somebody asks, and says how. Signals that are ignored when this is first called stay so: `nohup` asks for
/// that, and shells do for what scripts start in the background.
#[cfg(unix)]
pub(crate) async fn signal() -> &'static str {
    use tokio::signal::unix::{Signal, SignalKind, signal};
    // Where one cannot be listened to, the system's own way of ending us remains.
    let listen = |kind: SignalKind| {
        let ignored = is_ignored(kind.as_raw_value());
        (!ignored).then(|| signal(kind).ok()).flatten()
    };
    let mut term = listen(SignalKind::terminate());
    let mut hangup = listen(SignalKind::hangup());
    let mut interrupt = listen(SignalKind::interrupt());
    let wait = async |s: &mut Option<Signal>| match s {
        Some(s) => drop(s.recv().await),
        None => std::future::pending().await,
    };
    tokio::select! {
        () = wait(&mut term) => "SIGTERM",
        () = wait(&mut hangup) => "SIGHUP",
        () = wait(&mut interrupt) => "Ctrl-C",
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

/// Waits until somebody asks, and says how.
#[cfg(not(unix))]
pub(crate) async fn signal() -> &'static str {
    match tokio::signal::ctrl_c().await {
        Ok(()) => "Ctrl-C",
        Err(_) => std::future::pending().await,
    }
}
