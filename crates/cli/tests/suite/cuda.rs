//! NVIDIA's GPUs, through a driver that interprets their kernels: `tests/ptx/library` takes the place of NVIDIA's.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tallow_support::{PATIENCE, golden};

use crate::common::server::{Server, answer, whole};
use crate::common::{Did, Home, did, gpu};

/// The driver that interprets kernels.
const LIBRARY: &str = "libtallow_ptx_library.so";

/// A command on a machine whose driver is `library`.
fn command(home: &Home, library: &str, variables: &[(&str, &str)], args: &[&str]) -> Command {
    let folder = home.path().join("driver");
    std::fs::create_dir_all(&folder).unwrap();
    // It is a dependency of these tests, and lies beside them.
    let library = std::env::current_exe().unwrap().with_file_name(library);
    assert!(library.exists(), "{} is not there", library.display());
    symlink(library, folder.join("libcuda.so.1")).unwrap();
    let mut command = home.command(args);
    command.env("LD_LIBRARY_PATH", &folder).env("MOCK_CUDA_TELLS", "1").envs(variables.iter().copied());
    command
}

fn run(variables: &[(&str, &str)], args: &[&str]) -> Did {
    let home = Home::new();
    did(command(&home, LIBRARY, variables, args), b"")
}

/// Runs it while this happens to the device: orders of `tests/ptx/src/mock/script.rs`.
fn run_while(orders: &str, args: &[&str]) -> Did {
    let home = Home::new();
    let script = home.file("script", orders);
    did(command(&home, LIBRARY, &[("MOCK_CUDA_SCRIPT", &script)], args), b"")
}

/// A server on the device, to which things can be made to happen.
struct OnCuda {
    server: Server,
    script: Home,
}

impl OnCuda {
    fn start(flags: &[&str]) -> OnCuda {
        let (home, script) = (Home::new(), Home::new());
        let path = script.path().join("script");
        // Without a --batch steps are measured, which takes long here.
        let args = [&["serve", "demo", "--port", "0", "--device", "cuda", "--batch", "64"], flags].concat();
        let command = command(&home, LIBRARY, &[("MOCK_CUDA_SCRIPT", path.to_str().unwrap())], &args);
        OnCuda { server: Server::of(home, command), script }
    }

    /// From now on this happens, and nothing else.
    fn happens(&self, orders: &str) {
        let written = self.script.file("written", orders);
        std::fs::rename(written, self.script.path().join("script")).unwrap();
    }

    /// Streams that have begun.
    fn streams(&self, count: usize, max_tokens: usize) -> Vec<TcpStream> {
        let body = json!({"prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": true, "stream": true});
        let mut streams: Vec<TcpStream> = (0..count).map(|_| self.server.complete(&body)).collect();
        for stream in &mut streams {
            stream.read_exact(&mut [0; 64]).unwrap();
        }
        streams
    }
}

/// The rest of a stream.
fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

const ASK: &[&str] = &["run", "demo", "-n", "8", "--temp", "0", "-p", "Once upon a time"];

#[test]
fn a_model_says_on_it_what_it_says_on_the_cpu() {
    for arithmetic in ["exact", "fast"] {
        let on = |device| run(&[], &[ASK, &["--device", device, "--arithmetic", arithmetic]].concat());
        let (cpu, cuda) = (on("cpu").ok(), on("cuda"));
        assert!(cpu.split_whitespace().count() > 4, "{cpu}");
        assert_eq!(cuda.ok(), cpu, "{arithmetic}");
    }
}

#[test]
fn the_device_is_chosen_by_its_index() {
    let on = |device| run(&[("MOCK_CUDA_DEVICES", "2")], &[ASK, &["--device", device, "-v"]].concat());
    let said = on("cuda:1").err;
    assert!(said.contains("cuda:1 interpreter"), "{said}");
    insta::assert_snapshot!(on("cuda:7").failed(), @"error: there is no device cuda:7: there are: cuda:0 interpreter, cuda:1 interpreter. Take --device auto or --device cpu");
}

#[test]
fn a_driver_that_cannot_be_used_is_said_with_what_to_do() {
    let on_cuda = [ASK, &["--device", "cuda"]].concat();
    let old = run(&[("MOCK_CUDA_VERSION", "11080")], &on_cuda).failed();
    insta::assert_snapshot!(old, @"error: there is no device cuda:0: the NVIDIA driver is too old: it knows CUDA 11.8, and 12.0 is needed; update it to version 525 or newer. Take --device auto or --device cpu");
    let none = run(&[("MOCK_CUDA_DEVICES", "0")], &on_cuda).failed();
    assert!(
        none.starts_with("error: there is no device cuda:0: the NVIDIA driver finds no device ("),
        "{none}"
    );
    // A folder is no library, and the loader looks no further.
    let home = Home::new();
    let missing = did(command(&home, "", &[], &on_cuda), b"").failed();
    assert!(
        missing.starts_with("error: there is no device cuda:0: there is no NVIDIA driver ("),
        "{missing}"
    );
    assert!(
        missing.contains("; install it, version 525 or newer. Take --device auto or --device cpu\n"),
        "{missing}"
    );
}

/// Of a device that cannot be used, whose ops it does not test.
#[test]
fn the_doctor_lists_it() {
    let said = run(&[("MOCK_CUDA_CAPABILITY", "75")], &["doctor"]).ok();
    let (_, about) = said.split_once("\ncuda:0 interpreter\n").expect(&said);
    let (about, _) = about.split_once("\n\n").expect(about);
    insta::assert_snapshot!(about, @r"
      is           a GPU with memory of its own
      driver       NVIDIA's, for CUDA 12.0
      features     compute capability 7.5, 2 multiprocessors, 99 KiB shared
      bus          0000:01:00.0
      memory       16.0 GiB of 16.0 GiB free
      cannot be used: cuda:0 interpreter failed: it has compute capability 7.5, and 8.0 is needed; take another device, or reach it through another interface
    ");
}

/// A driver that is there and refuses is one that its user expects to be used.
#[test]
fn the_doctor_lists_a_driver_that_refuses() {
    let said = run(&[("MOCK_CUDA_VERSION", "11080")], &["doctor"]).ok();
    let (_, about) = said.split_once("\ncuda\n").expect(&said);
    let (about, _) = about.split_once("\n\n").expect(about);
    insta::assert_snapshot!(about, @"  cannot be used: the NVIDIA driver is too old: it knows CUDA 11.8, and 12.0 is needed; update it to version 525 or newer");
    // One without a device is nothing to mention.
    let none = run(&[("MOCK_CUDA_DEVICES", "0")], &["doctor"]).ok();
    assert!(!none.contains("\ncuda\n"), "{none}");
}

#[test]
fn devices_that_a_variable_hides_are_said_with_it() {
    let on = |visible, device| {
        let variables = [("MOCK_CUDA_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", visible)];
        run(&variables, &[ASK, &["--device", device]].concat())
    };
    insta::assert_snapshot!(on("", "cuda").failed(), @"error: there is no device cuda:0: the NVIDIA driver finds no device (cuInit: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected); CUDA_VISIBLE_DEVICES is set to nothing, which hides all: unset it. Take --device auto or --device cpu");
    insta::assert_snapshot!(on("gpu0", "cuda").failed(), @r#"error: there is no device cuda:0: the NVIDIA driver finds no device (cuInit: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected); CUDA_VISIBLE_DEVICES is set to "gpu0", and what does not begin with the number or the UUID of a device hides all: `nvidia-smi -L` lists them. Take --device auto or --device cpu"#);
    insta::assert_snapshot!(on("1", "cuda:1").failed(), @r#"error: there is no device cuda:1: there are: cuda:0 interpreter; CUDA_VISIBLE_DEVICES is set to "1", and hides others. Take --device auto or --device cpu"#);
    on("1", "cuda:0").ok();
    // Who hides all means it.
    assert_eq!(on("", "auto").ok(), run(&[], ASK).ok());
}

/// A GPU reached through both Vulkan and CUDA is one GPU.
#[test]
fn a_gpu_is_not_listed_as_two() {
    let Some(device) = gpu() else { return };
    let found = tallow_wgpu::devices();
    let Some(uuid) = found[0].about().uuid else { return };
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    // One that cannot be used is listed, and not tested, which would take long.
    let variables = [("MOCK_CUDA_CAPABILITY", "75"), ("MOCK_CUDA_DEVICES", "2"), ("MOCK_CUDA_UUID", &uuid)];
    let said = run(&variables, &["doctor"]).ok();
    let lines = |name: &str| {
        let (_, about) = said.split_once(&format!("\n{name} ")).expect(&said);
        let about = about.split("\n\n").next().unwrap();
        about
            .lines()
            .filter(|line| line.trim_start().starts_with("same as"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (vulkan, cuda) = (lines(&device), lines("cuda:0"));
    assert_eq!(vulkan, ["  same as      cuda:0 interpreter, reached another way"], "{said}");
    assert!(cuda.len() == 1 && cuda[0].contains(&device), "{said}");
    assert!(lines("cuda:1").is_empty(), "{said}");
}

#[test]
fn memory_that_others_have_is_planned_around() {
    let full = run_while("take 17179000000", &[ASK, &["--device", "cuda"]].concat()).failed();
    assert!(full.contains("849 KiB free") && full.contains("cuda:0 interpreter"), "{full}");
}

/// It is for one process, and another one has it.
#[test]
fn a_device_that_others_have_is_passed_over() {
    let taken = "fail cuDevicePrimaryCtxRetain 46";
    let why = run_while(taken, &[ASK, &["--device", "cuda"]].concat()).failed();
    assert!(why.contains("cuda:0 interpreter failed: it is busy"), "{why}");
    let passed = run_while(taken, &[ASK, &["--device", "auto"]].concat());
    assert!(gpu().is_some() || passed.err.contains("trying cpu instead"), "{}", passed.err);
    assert_eq!(passed.ok(), run(&[], ASK).ok());
}

#[test]
fn memory_that_cannot_be_pinned_is_said_and_does_as_well() {
    let asked = [ASK, &["--device", "cuda"]].concat();
    let pageable = run_while("fail cuMemHostAlloc 304", &asked);
    assert!(pageable.err.contains("the system refuses to pin memory"), "{}", pageable.err);
    let pinned = run(&[], &asked);
    assert!(!pinned.err.contains("pin memory"), "{}", pinned.err);
    assert_eq!(pageable.ok(), pinned.ok());
}

#[test]
fn what_a_step_launches_is_shown() {
    let said = run(&[], &["bench", "--explain", "--device", "cuda", "-b", "16", "demo"]).ok();
    for what in ["a step of a prompt (16 tokens)", "a step of an answer (1 tokens)"] {
        let (_, step) = said.split_once(what).expect(&said);
        let count = |name: &str| -> usize {
            let line = step.lines().find(|line| line.starts_with(name)).expect(step);
            line.split_whitespace().next_back().unwrap().parse().unwrap()
        };
        assert!(count("launches") > 10, "{said}");
        assert_eq!(count("read-backs"), 0, "{said}");
    }
}

/// On a machine that computes nothing, since all of a device's speed is read by interpreting kernels otherwise. The prompt that is
/// shown is as long as the model takes, not as long as is measured.
#[test]
fn the_speed_of_a_shape_without_weights_is_measured() {
    let bench = |how: &[&str]| {
        let home = Home::new();
        let config = golden("llama").join("config.json");
        let like = config.to_str().unwrap();
        let args = [&["bench", "--device", "cuda", "--like", like, "--quant", "q8_0"], how].concat();
        did(command(&home, LIBRARY, &[("MOCK_CUDA_COMPUTES", "0")], &args), b"")
    };
    let rows = bench(&["-p", "32", "-n", "4", "-r", "2", "-o", "jsonl"]).ok();
    let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    for (row, tokens) in rows.iter().zip([(32, 0), (0, 4)]) {
        assert_eq!((row["n_prompt"].as_u64(), row["n_gen"].as_u64()), (Some(tokens.0), Some(tokens.1)));
        assert_eq!(row["samples_ts"].as_array().map(Vec::len), Some(2), "{row}");
        assert!(row["avg_ts"].as_f64().is_some_and(|speed| speed > 0.0), "{row}");
    }
    let too_long = bench(&["-p", "512"]).failed();
    assert!(too_long.contains("512 tokens are asked for, and the model's context is 128"), "{too_long}");
    let shown = bench(&["--explain"]).ok();
    assert!(shown.contains("a step of a prompt (128 tokens)"), "{shown}");
    assert!(shown.contains("a step of an answer (1 tokens)"), "{shown}");
}

/// Eight clients at once get what each gets alone on the CPU; one more that leaves changes nothing, and no page stays in use.
#[test]
fn clients_of_a_server_get_what_the_cpu_says() {
    let cpu = Server::start(&["--kv", "f32", "--device", "cpu", "--arithmetic", "exact"]);
    let cuda = OnCuda::start(&["--kv", "f32", "--slots", "16", "--arithmetic", "exact"]);
    let body = |i: usize| {
        let prompt = ["Once upon a time", "The king said", "In the forest", "There was an old"][i % 4];
        json!({"prompt": format!("{prompt} {i}"), "max_tokens": 16, "temperature": 0})
    };
    let said = |v: &Value| v["choices"][0]["text"].as_str().unwrap().to_owned();
    let alone: Vec<String> = (0..8).map(|i| said(&whole(cpu.complete(&body(i))))).collect();
    let leaves = cuda.streams(1, 900);
    let streams: Vec<TcpStream> = (0..8).map(|i| cuda.server.complete(&body(i))).collect();
    std::thread::sleep(Duration::from_millis(200));
    drop(leaves);
    let together: Vec<String> = streams.into_iter().map(|stream| said(&whole(stream))).collect();
    assert_eq!(together, alone);
    cuda.server.comes_to_rest();
}

/// A request that finds no room, since what is free lies in small pieces, fails by itself: others still find theirs.
#[test]
fn who_finds_no_memory_fails_alone() {
    let cuda = OnCuda::start(&["--slots", "4"]);
    // Room for the logits of a token, and not for those of two.
    cuda.happens("largest 60000");
    let scored = json!({"prompt": "the king and his daughter", "max_tokens": 1, "echo": true, "logprobs": 1});
    let short = json!({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
    let (status, why) = answer(cuda.server.complete(&scored));
    assert!(status == 500 && why.contains("has no room for"), "{status}: {why}");
    assert_eq!(whole(cuda.server.complete(&short))["usage"]["completion_tokens"], 8);
    assert_eq!(cuda.server.get("/ready").0, 200);
    cuda.happens("");
    assert_eq!(whole(cuda.server.complete(&scored))["usage"]["completion_tokens"], 1);
    cuda.server.comes_to_rest();
}

/// Others take all that is free while it serves: the pool has what steps took before. Steps that compute a prompt beside answers
/// have as many tokens as time allows, so a long one finds room or fails; either way by itself.
#[test]
fn a_gpu_that_others_fill_serves_on() {
    let cuda = OnCuda::start(&["--slots", "4"]);
    let mut goes_on = cuda.streams(1, 60);
    cuda.happens("fill");
    let long = json!({"prompt": "the king and his daughter ".repeat(60), "max_tokens": 4, "temperature": 0});
    let (status, why) = answer(cuda.server.complete(&long));
    assert!(status == 200 || status == 500 && why.contains("has no room for"), "{status}: {why}");
    let text = rest(goes_on.remove(0));
    assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"), "{text}");
    assert_eq!(cuda.server.get("/ready").0, 200);
    cuda.happens("");
    assert_eq!(whole(cuda.server.complete(&long))["usage"]["completion_tokens"], 4);
    cuda.server.comes_to_rest();
}

/// An illegal address, and memory that broke: everybody is told once, and the server says that it is not ready.
#[test]
fn a_lost_device_is_told_to_everybody_once() {
    for (code, name) in [(700, "CUDA_ERROR_ILLEGAL_ADDRESS"), (214, "CUDA_ERROR_ECC_UNCORRECTABLE")] {
        let mut cuda = OnCuda::start(&["--slots", "4"]);
        let streams = cuda.streams(4, 900);
        let waits = cuda.server.complete(&json!({"prompt": "Once", "max_tokens": 4}));
        cuda.happens(&format!("fail cuLaunchKernel {code}"));
        for text in streams.into_iter().map(rest) {
            assert_eq!(text.matches("data: {\"error\"").count(), 1, "{text}");
            assert!(text.contains("cuda:0 interpreter is lost") && text.contains(name), "{text}");
            assert!(!text.contains("[DONE]"), "{text}");
        }
        let (status, why) = answer(waits);
        assert!(status >= 500 && why.contains("is lost"), "{status}: {why}");
        let (status, why) = cuda.server.get("/ready");
        assert!(status == 503 && why.contains("is lost"), "{status}: {why}");
        let (status, why) = answer(cuda.server.complete(&json!({"prompt": "Once", "max_tokens": 4})));
        assert!(status >= 500 && why.contains("is lost"), "{status}: {why}");
        cuda.server.signal(libc::SIGTERM);
        assert_eq!(cuda.server.ended(PATIENCE), Some(0));
    }
}

/// Each launch takes a quarter of a second, and a step some seconds. Who streams is told when the time is over; a second signal ends
/// the program at once.
#[test]
fn a_signal_in_a_long_step_ends_the_program() {
    for again in [false, true] {
        let mut cuda = OnCuda::start(&["--slots", "4", "--drain", "1"]);
        let streams = cuda.streams(2, 900);
        cuda.happens("slow cuLaunchKernel 250");
        std::thread::sleep(Duration::from_millis(500));
        cuda.server.signal(libc::SIGTERM);
        if again {
            std::thread::sleep(Duration::from_millis(100));
            cuda.server.signal(libc::SIGTERM);
            assert_eq!(cuda.server.ended(Duration::from_secs(5)), Some(130));
            continue;
        }
        for text in streams.into_iter().map(rest) {
            assert!(text.contains("data: {\"error\"") && text.contains("shutting down"), "{text}");
        }
        assert_eq!(cuda.server.ended(PATIENCE), Some(0));
    }
}
