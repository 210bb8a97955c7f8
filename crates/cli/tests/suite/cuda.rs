//! NVIDIA's GPUs, through a driver that interprets their kernels: `tests/ptx/library` takes the place of NVIDIA's.

use std::os::unix::fs::symlink;

use crate::common::{Did, Home, did};

/// Runs the program on a machine whose driver is `library`.
fn run_with(library: &str, variables: &[(&str, &str)], args: &[&str]) -> Did {
    let home = Home::new();
    let folder = home.path().join("driver");
    std::fs::create_dir_all(&folder).unwrap();
    // It is a dependency of these tests, and lies beside them.
    let library = std::env::current_exe().unwrap().with_file_name(library);
    assert!(library.exists(), "{} is not there", library.display());
    symlink(library, folder.join("libcuda.so.1")).unwrap();
    let mut command = home.command(args);
    command.env("LD_LIBRARY_PATH", &folder).env("MOCK_CUDA_TELLS", "1").envs(variables.iter().copied());
    did(command, b"")
}

fn run(variables: &[(&str, &str)], args: &[&str]) -> Did {
    run_with("libtallow_ptx_library.so", variables, args)
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
    let missing = run_with("", &[], &on_cuda).failed();
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
