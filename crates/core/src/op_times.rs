//! [`OpTimes`]: where the time of a step went, op by op, on a device that computes an op when it is launched.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Times of all launches of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OpTime {
    /// Number of launches.
    launches: usize,
    /// Time without that of the ops that it is composed of.
    own: Duration,
    /// The part of `own` in which all threads could work.
    parallel: Duration,
    /// Time for which the threads worked in these parts, as a mean over the threads.
    worked: Duration,
}

impl OpTime {
    /// Time in which a single thread could work.
    fn serial(&self) -> Duration {
        self.own.saturating_sub(self.parallel)
    }

    /// Time for which threads waited for others in the parallel parts, as a mean over the threads.
    fn waited(&self) -> Duration {
        self.parallel.saturating_sub(self.worked)
    }

    fn add(&mut self, other: &OpTime) {
        self.launches += other.launches;
        self.own += other.own;
        self.parallel += other.parallel;
        self.worked += other.worked;
    }
}

/// An op in progress.
#[derive(Debug)]
struct Open {
    op: &'static str,
    began: Instant,
    /// Time of the ops that it is composed of, and whether there are any.
    inner: Duration,
    is_composed: bool,
    time: OpTime,
}

/// Times of all ops since timing was started.
#[derive(Debug, Default)]
pub struct OpTimes {
    /// By the op, and whether it was composed of others.
    ops: BTreeMap<(&'static str, bool), OpTime>,
    open: Vec<Open>,
}

impl OpTimes {
    pub(crate) fn enter(&mut self, op: &'static str) {
        let (began, inner) = (Instant::now(), Duration::ZERO);
        let time = OpTime { launches: 1, ..OpTime::default() };
        self.open.push(Open { op, began, inner, is_composed: false, time });
    }

    pub(crate) fn leave(&mut self) {
        // Timing may have been started within the op.
        let Some(mut ended) = self.open.pop() else { return };
        let all = ended.began.elapsed();
        ended.time.own = all.saturating_sub(ended.inner);
        self.ops.entry((ended.op, ended.is_composed)).or_default().add(&ended.time);
        if let Some(outer) = self.open.last_mut() {
            outer.inner += all;
            outer.is_composed = true;
        }
    }

    pub(crate) fn add_parallel(&mut self, took: Duration, worked: Duration) {
        if let Some(open) = self.open.last_mut() {
            open.time.parallel += took;
            open.time.worked += worked;
        }
    }

    /// Of all ops together.
    fn all(&self) -> OpTime {
        let mut all = OpTime::default();
        self.ops.values().for_each(|time| all.add(time));
        all
    }

    /// A table of ops, of `steps` steps that took `whole`: milliseconds a step, and shares of the whole. Time in which no op
    /// was in progress counts as that of one thread.
    pub fn table(&self, steps: usize, whole: Duration) -> String {
        let mut rows: Vec<_> =
            self.ops.iter().map(|((op, composed), time)| (*op, *composed, *time)).collect();
        rows.sort_by_key(|(.., time)| std::cmp::Reverse(time.own));
        let steps = steps.max(1);
        let share = |part: Duration| 100.0 * part.as_secs_f64() / whole.as_secs_f64().max(1e-9);
        let mut table = format!(
            "{:<14} {:<9} {:>8} {:>8} {:>7}  {:>10}  {:>7}\n",
            "op", "how", "launches", "ms", "share", "one thread", "waiting"
        );
        let mut line = |op: &str, how: &str, time: &OpTime| {
            let ms = time.own.as_secs_f64() * 1e3 / steps as f64;
            let (own, serial, waited) = (share(time.own), share(time.serial()), share(time.waited()));
            let launches = time.launches / steps;
            let _ = writeln!(
                table,
                "{op:<14} {how:<9} {launches:>8} {ms:>8.3} {own:>5.1} %  {serial:>8.1} %  {waited:>5.1} %"
            );
        };
        for (op, composed, time) in &rows {
            line(op, if *composed { "composed" } else { "native" }, time);
        }
        let mut all = self.all();
        let outside = OpTime { own: whole.saturating_sub(all.own), ..OpTime::default() };
        line("outside ops", "", &outside);
        all.add(&outside);
        line("all", "", &all);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The time of an op is not that of those within it, and each thread's part of an op counts.
    #[test]
    fn an_op_has_its_own_time() {
        let mut times = OpTimes::default();
        for _ in 0..2 {
            times.enter("ffn");
            times.enter("linear");
            std::thread::sleep(ms(20));
            times.add_parallel(ms(6), ms(4));
            times.leave();
            std::thread::sleep(ms(5));
            times.leave();
        }
        times.leave();
        let of = |op, composed| times.ops[&(op, composed)];
        let (ffn, linear) = (of("ffn", true), of("linear", false));
        assert_eq!((ffn.launches, linear.launches, times.ops.len()), (2, 2, 2));
        assert!(linear.own >= ms(40) && ffn.own >= ms(10), "{times:?}");
        assert!(ffn.own + linear.own == times.all().own);
        assert_eq!((linear.parallel, linear.waited(), ffn.parallel), (ms(12), ms(4), ms(0)));
        assert_eq!((linear.serial(), ffn.serial()), (linear.own - ms(12), ffn.own));
    }

    #[test]
    fn the_table_has_the_largest_first_and_adds_up() {
        let mut times = OpTimes::default();
        let time = |own, parallel, worked| OpTime {
            launches: 4,
            own: ms(own),
            parallel: ms(parallel),
            worked: ms(worked),
        };
        times.ops.insert(("attend", false), time(10, 8, 8));
        times.ops.insert(("linear", false), time(80, 80, 70));
        let want = [
            "op             how       launches       ms   share  one thread  waiting",
            "linear         native           2   40.000  80.0 %       0.0 %   10.0 %",
            "attend         native           2    5.000  10.0 %       2.0 %    0.0 %",
            "outside ops                     0    5.000  10.0 %      10.0 %    0.0 %",
            "all                             4   50.000 100.0 %      12.0 %   10.0 %",
        ];
        assert_eq!(times.table(2, ms(100)).lines().collect::<Vec<_>>(), want);
    }
}
