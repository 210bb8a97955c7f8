//! `cargo xtask clients`: the server against the official Python clients of the protocols that it speaks, a suite that holds
//! answers against the schemas of these, and another's judgement of what is generated under schemas.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::program::program;
use crate::server::{Server, step};

/// Pinned versions, so that results are reproducible.
const PACKAGES: [&str; 6] = [
    "openai==3.57.0",
    "anthropic==2.14.0",
    "ollama==0.6.3",
    "litellm==1.110.2",
    "llm-comply==0.5.0",
    "jsonschema==4.26.0",
];

/// Installs the clients in a folder of their own, starts servers and runs the clients. The program is `given`, or is built.
pub(crate) fn run(root: &Path, given: Option<&Path>) -> ExitCode {
    match try_run(root, given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("clients: {why}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path, given: Option<&Path>) -> Result<(), String> {
    let venv = root.join("target/clients");
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        step(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    let quietly = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    step(Command::new(&python).args(quietly).args(PACKAGES))?;
    let (program, folder) = (program(root, given)?, root.join("tests/clients"));
    let client = |name: &str, bases: &[&str]| {
        println!("-- {name}");
        step(Command::new(&python).arg(folder.join(name)).args(bases))
    };
    {
        let (_server, base) = Server::start(&program, "demo", &["--slots", "8"], &[])?;
        client("openai_client.py", &[&base])?;
    }
    let template = folder.join("agent.jinja");
    let template = template.to_str().ok_or("the path of the template is not text")?;
    let agent = ["--slots", "8", "--chat-template", template];
    let (_server, base) = Server::start(&program, "demo", &agent, &[])?;
    // The model whose files the tests need, too.
    let minilm = root.join("target/minilm");
    let minilm = minilm.to_str().filter(|_| minilm.exists());
    let encoder = minilm.map(|path| Server::start(&program, path, &[], &[])).transpose()?;
    let bases: Vec<&str> =
        [Some(&base), encoder.as_ref().map(|(_, base)| base)].into_iter().flatten().map(|b| &**b).collect();
    if encoder.is_none() {
        println!("there is no target/minilm (tools/minilm/fetch), so embeddings are left out");
    }
    client("schemas.py", &[&base])?;
    client("openai_agent.py", &[&base])?;
    client("anthropic_client.py", &[&base])?;
    client("ollama_client.py", &bases)?;
    client("ollama_pull.py", &[program.to_str().ok_or("the path of the program is not text")?])?;
    client("litellm_client.py", &bases)?;
    // Its answers must end by themselves, which greedy ones always do alike.
    let (_server, base) =
        Server::start(&program, "demo", &[&agent[..], &["--temperature", "0"]].concat(), &[])?;
    client("comply.py", &[&base])?;
    Ok(())
}
