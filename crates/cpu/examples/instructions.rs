//! Instructions that linear layers take for each weight, counted one by one:
//!
//! ```text
//! cargo run --release -p tallow-cpu --example instructions [ROWS] [FORMAT...]
//! bash .ci/check-arm instructions [ROWS] [FORMAT...]      # NEON and I8MM, on a machine without them
//! ```
//!
//! Unlike a time, the count is the same on a busy machine, and on every machine with the instruction set. The bytes of weights
//! for an instruction, times what a core does in a cycle (four or so of such code), are the bytes a cycle that the loop allows
//! where memory does not limit it (`in_cache` measures those). With more rows than one, the count is for each row, too.
//!
//! On Linux alone: a second process computes a product, and this one follows it step by step; or, with
//! `--emulator "QEMU OPTIONS PROGRAM"`, QEMU writes a line for each, and PROGRAM is this one for the machine that it emulates.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    counting::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("instructions are counted on Linux alone");
}

#[cfg(target_os = "linux")]
mod counting {
    use std::error::Error;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::ptr::null_mut;

    use tallow_core::ops::{Epilogue, Linear};
    use tallow_core::{Backend, Format, HostWeight, LinearWeights, Memory};
    use tallow_cpu::{Cpu, Isa};

    type Outcome<T> = Result<T, Box<dyn Error>>;

    const INPUTS: usize = 1024;
    /// Outputs of two layers: what both take alike, around their loops, is in neither count of the difference.
    const OUTPUTS: [usize; 2] = [32, 64];
    /// The first argument of the process that is followed, and of one that is emulated.
    const FOLLOWED: &str = "--followed";
    const EMULATED: &str = "--emulated";

    pub(super) fn main() -> Outcome<()> {
        let mut args: Vec<String> = std::env::args().skip(1).collect();
        if let [first, isa, format, rows, outputs] = &args[..]
            && first == FOLLOWED
        {
            return product(isa.parse()?, named(format)?, rows.parse()?, outputs.parse()?, 1, stop);
        }
        if let [first, isa, format, rows, outputs, runs] = &args[..]
            && first == EMULATED
        {
            return product(
                isa.parse()?,
                named(format)?,
                rows.parse()?,
                outputs.parse()?,
                runs.parse()?,
                || (),
            );
        }
        let emulator = match args.first().is_some_and(|first| first == "--emulator") && args.len() > 1 {
            true => args.drain(..2).next_back(),
            false => None,
        };
        let (rows, formats) = match args.split_first() {
            Some((first, more)) if first.parse::<usize>().is_ok() => (first.parse()?, more),
            _ => (1, &args[..]),
        };
        let formats = match formats {
            [] => Format::ALL.to_vec(),
            given => given.iter().map(|name| named(name)).collect::<Outcome<_>>()?,
        };
        let isas: Vec<Isa> = match emulator {
            Some(_) => vec![Isa::Neon, Isa::I8mm],
            None => Isa::ALL.into_iter().filter(|isa| isa.is_available() && *isa != Isa::Scalar).collect(),
        };
        let what = if rows == 1 { "a weight".to_owned() } else { format!("a weight and row, {rows} rows") };
        println!("Instructions {what}, and bytes of weights an instruction in brackets\n");
        println!("| format |{}", isas.iter().map(|isa| format!(" {isa} |")).collect::<String>());
        println!("|---|{}", "---:|".repeat(isas.len()));
        for format in formats {
            let width = format.row_bytes(INPUTS).ok_or("no whole blocks")? as f64 / INPUTS as f64;
            let mut line = format!("| {} |", format.name());
            for isa in &isas {
                let [few, many] = OUTPUTS.map(|outputs| match &emulator {
                    Some(command) => emulated(command, *isa, format, rows, outputs),
                    None => instructions(*isa, format, rows, outputs),
                });
                let each = (many? - few?) as f64 / ((OUTPUTS[1] - OUTPUTS[0]) * INPUTS) as f64;
                line += &format!(" {:.3} ({:.2}) |", each / rows as f64, width / each);
            }
            println!("{line}");
        }
        Ok(())
    }

    fn named(name: &str) -> Outcome<Format> {
        let found = Format::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("there is no format {name}").into())
    }

    /// Instructions of a product with so many outputs, and of two signals.
    fn instructions(isa: Isa, format: Format, rows: usize, outputs: usize) -> Outcome<u64> {
        let mut followed = Command::new(std::env::current_exe()?);
        followed.args([FOLLOWED, &isa.to_string(), format.name(), &rows.to_string(), &outputs.to_string()]);
        // SAFETY: between fork and exec the closure makes one system call and touches no memory.
        unsafe {
            followed.pre_exec(|| {
                match libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        let mut child = followed.spawn()?;
        let counted = count(&child);
        child.kill()?;
        child.wait()?;
        counted
    }

    /// Instructions of a product in QEMU, where two more in a process take twice as many more. `command`: the emulator with its
    /// options, one of which has it translate one instruction at a time, and this program.
    fn emulated(command: &str, isa: Isa, format: Format, rows: usize, outputs: usize) -> Outcome<u64> {
        let mut words = command.split_whitespace();
        let emulator = words.next().ok_or("which emulator?")?;
        let words: Vec<&str> = words.collect();
        let all = |runs: u64| -> Outcome<u64> {
            let mut program = Command::new(emulator);
            program.args(["-d", "exec,nochain"]).args(&words).arg(EMULATED);
            program.args([&isa.to_string(), format.name(), &rows.to_string(), &outputs.to_string()]);
            let mut program = program.arg(runs.to_string()).stderr(Stdio::piped()).spawn()?;
            let mut lines = BufReader::new(program.stderr.take().ok_or("no standard error")?);
            let (mut line, mut count) = (Vec::new(), 0);
            while lines.read_until(b'\n', &mut line)? > 0 {
                count += u64::from(line.starts_with(b"Trace"));
                line.clear();
            }
            match program.wait()?.success() {
                true => Ok(count),
                false => Err(format!("{command} has failed").into()),
            }
        };
        let (one, three) = (all(1)?, all(3)?);
        Ok((three - one) / 2)
    }

    /// Lets a process run until it stops itself, and counts its steps until it does so again.
    fn count(child: &Child) -> Outcome<u64> {
        let (mut request, mut steps, mut stops) = (libc::PTRACE_CONT, 0, 0);
        loop {
            let mut status = 0;
            // SAFETY: the child is ours, and `status` is valid.
            if unsafe { libc::waitpid(child.id() as libc::pid_t, &mut status, 0) } < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            if !libc::WIFSTOPPED(status) {
                return Err("the process that is followed has ended early".into());
            }
            match libc::WSTOPSIG(status) {
                libc::SIGSTOP if stops == 1 => return Ok(steps),
                libc::SIGSTOP => (request, stops) = (libc::PTRACE_SINGLESTEP, 1),
                // A step, or the exec before the first stop.
                libc::SIGTRAP => steps += u64::from(stops == 1),
                signal => return Err(format!("the process that is followed got signal {signal}").into()),
            }
            // SAFETY: the child has stopped, and goes on without a signal.
            if unsafe { libc::ptrace(request, child.id() as libc::pid_t, null_mut::<u8>(), null_mut::<u8>()) }
                < 0
            {
                return Err(std::io::Error::last_os_error().into());
            }
        }
    }

    /// Computes a product so many times, between two stops.
    fn product(
        isa: Isa,
        format: Format,
        rows: usize,
        outputs: usize,
        runs: usize,
        stop: impl Fn(),
    ) -> Outcome<()> {
        let b = Cpu::new(isa, 1)?;
        let row: Vec<f32> = (0..INPUTS).map(|i| (i * 13 % 61) as f32 / 61.0 - 0.5).collect();
        // No count depends on them.
        let bytes = vec![0; outputs * format.row_bytes(INPUTS).ok_or("no whole blocks")?];
        let weight = b.prepare(HostWeight::new(format, outputs, INPUTS, &bytes))?;
        let weights = LinearWeights::new(weight, None);
        let x = b.upload(&row.repeat(rows), rows, INPUTS)?;
        let run = || b.run(Linear { x: &x, weights: &weights, epilogue: Epilogue::NONE });
        // Buffers are taken from a pool from then on.
        run()?;
        run()?;
        stop();
        for _ in 0..runs {
            run()?;
        }
        stop();
        Ok(())
    }

    fn stop() {
        // SAFETY: the signal stops this process, and whoever follows it lets it go on.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}
