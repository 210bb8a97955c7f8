//! How a program is asked to stop.

/// Waits until somebody asks, and says how.
#[cfg(unix)]
pub(crate) async fn signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    // Where one cannot be listened to, the system's own way of ending us remains.
    let (mut term, mut hangup) = (signal(SignalKind::terminate()).ok(), signal(SignalKind::hangup()).ok());
    let wait = async |s: &mut Option<tokio::signal::unix::Signal>| match s {
        Some(s) => drop(s.recv().await),
        None => std::future::pending().await,
    };
    tokio::select! {
        () = wait(&mut term) => "SIGTERM",
        () = wait(&mut hangup) => "SIGHUP",
        _ = tokio::signal::ctrl_c() => "Ctrl-C",
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
