//! Measured processes, and the CPU time that other processes used meanwhile.

use std::process::{Command, Stdio};

use super::results::{OTHERS, Run};

/// How often a disturbed run is repeated.
pub(super) const AGAIN: usize = 2;

/// CPU ticks of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    /// Not idle.
    busy: u64,
    total: u64,
    /// Of this program, its children that were waited for, and a server that it started.
    ours: u64,
}

/// Watches the machine's CPU time during a run.
pub(super) struct Watch {
    begun: Option<Ticks>,
    server: Option<u32>,
}

impl Watch {
    /// Starts watching. A running server has to be given: its time is not yet among that of the children waited for.
    pub(super) fn start(server: Option<u32>) -> Watch {
        Watch { begun: ticks(server), server }
    }

    /// The CPU share of other processes, if the system reports it.
    pub(super) fn others(&self) -> Option<f64> {
        let (begun, now) = (self.begun?, ticks(self.server)?);
        let others = now.busy.saturating_sub(begun.busy).saturating_sub(now.ours.saturating_sub(begun.ours));
        let total = now.total.saturating_sub(begun.total);
        (total > 0).then(|| others as f64 / total as f64)
    }

    /// Whether other processes used more than `OTHERS`.
    pub(super) fn is_disturbed(&self) -> bool {
        self.others().is_some_and(|others| others > OTHERS)
    }
}

fn ticks(server: Option<u32>) -> Option<Ticks> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let (busy, total) = of_machine(&read("/proc/stat")?)?;
    let mut ours = of_process(&read("/proc/self/stat")?)?;
    if let Some(id) = server {
        ours += of_process(&read(&format!("/proc/{id}/stat"))?)?;
    }
    Some(Ticks { busy, total, ours })
}

/// Busy and total ticks, from the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
/// Guest time is included in user.
fn of_machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let counts: Vec<u64> = line.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
    let total: u64 = counts.iter().sum();
    Some((total - counts.get(3)? - counts.get(4)?, total))
}

/// The ticks of a process and of its waited-for children, from its stat file.
fn of_process(text: &str) -> Option<u64> {
    // The name, in parentheses, may contain anything.
    let fields = text.rsplit_once(')')?.1.split_whitespace();
    let counts: Vec<u64> = fields.skip(11).take(4).map_while(|n| n.parse().ok()).collect();
    (counts.len() == 4).then(|| counts.iter().sum())
}

/// A program's standard output, and the CPU share of other processes meanwhile.
pub(super) fn output(command: &mut Command) -> Result<(String, Option<f64>), String> {
    let watch = Watch::start(None);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{} does not start: {e}", name(command)))?;
    let others = watch.others();
    if output.status.success() {
        return Ok((String::from_utf8_lossy(&output.stdout).into_owned(), others));
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{} ended with {}: {last}", name(command), output.status))
}

pub(super) fn name(command: &Command) -> String {
    let path = std::path::Path::new(command.get_program());
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Runs and repeats while other processes used too much. The least disturbed run counts.
pub(super) fn quiet(
    mut run: impl FnMut() -> Result<(Vec<f64>, Option<f64>), String>,
) -> Result<Vec<Run>, String> {
    let (mut values, mut others) = run()?;
    for _ in 0..AGAIN {
        let Some(disturbed) = others.filter(|others| *others > OTHERS) else { break };
        let again = run()?;
        if again.1.is_some_and(|others| others < disturbed) {
            (values, others) = again;
        }
    }
    Ok(values.into_iter().map(|value| Run { value, others }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_counts_are_read() {
        let machine = "cpu  100 1 20 700 9 3 4 5 50 0\ncpu0 1 2 3\n";
        assert_eq!(of_machine(machine), Some((133, 842)));
        assert_eq!(of_machine("intr 1"), None);
        let process = "42 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(of_process(process), Some(11 + 12 + 13 + 14));
        assert_eq!(of_process("42 (a) S 1"), None);
    }

    #[test]
    fn our_own_work_is_not_that_of_others() {
        let (before, after) = (ticks(None), {
            let begun = std::time::Instant::now();
            while begun.elapsed().as_millis() < 200 {
                std::hint::spin_loop();
            }
            ticks(None)
        });
        // Where the system does not report ticks there is nothing to compare.
        if let (Some(before), Some(after)) = (before, after) {
            assert!(after.ours >= before.ours + 5, "{before:?} {after:?}");
        }
    }

    #[test]
    fn disturbed_runs_are_made_again_and_the_quietest_is_kept() {
        let mut shares = [0.5, 0.2, 0.3, 0.0].into_iter();
        let mut counted = 0.0;
        let runs = quiet(|| {
            counted += 1.0;
            Ok((vec![counted], shares.next()))
        });
        assert_eq!(runs.unwrap(), [Run { value: 2.0, others: Some(0.2) }]);
        assert_eq!(counted, 3.0);
        let quiet_at_once = quiet(|| Ok((vec![7.0], Some(OTHERS))));
        assert_eq!(quiet_at_once.unwrap()[0].value, 7.0);
    }

    #[test]
    fn programs_that_fail_say_why() {
        assert!(output(&mut Command::new("no-such-program")).unwrap_err().contains("does not start"));
        let failed = output(Command::new("cargo").arg("no-such-command")).unwrap_err();
        assert!(failed.starts_with("cargo ended with") && failed.len() > 40, "{failed}");
    }
}
