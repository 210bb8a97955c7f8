//! Commands about model files: the hub, the cache, GGUF files.

use std::path::PathBuf;

use clap::Args;
use tallow_models::recipe::Recipe;

#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// org/name, org/name:quant, org/name@revision, a URL, or a short name
    pub model: String,
}

/// Address of a running server.
#[derive(Debug, Args)]
pub(crate) struct ServerAddress {
    /// Address of the server [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Port of the server [default: 8080]
    #[arg(short, long, value_name = "PORT")]
    pub port: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub server: ServerAddress,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The model, as the server calls it
    pub model: String,
    #[command(flatten)]
    pub server: ServerAddress,
}

#[derive(Debug, Args)]
pub(crate) struct Search {
    /// Words that the name contains; without any, all short names
    pub text: Vec<String>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Look only in the list of short names, not on the hub
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List the short names instead, with what they stand for
    #[arg(long)]
    pub aliases: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The model, as `tallow list` shows it
    pub model: String,
    /// Remove without asking
    ///
    /// The cache is shared with other programs that use the Hugging Face hub; they lose the model, too. So `rm` asks
    /// first, and where nobody can answer it wants this flag.
    #[arg(short, long, aliases = ["force", "assume-yes"])]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The model
    pub model: String,
    /// Print the chat template in full
    #[arg(long)]
    pub template: bool,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// List every key of the metadata
    #[arg(long)]
    pub metadata: bool,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Pack {
    /// The model
    pub model: String,
    /// Remove the packed weights
    #[arg(long)]
    pub remove: bool,
    /// CPU threads [default: the CPU's cores]
    #[arg(short = 't', long, value_name = "N")]
    pub threads: Option<usize>,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// The model: a Hugging Face folder or a GGUF file
    #[arg(value_name = "IN")]
    pub model: String,
    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Quantize F32/F16/BF16 weights: q4_k_m, q8_0, …
    ///
    /// A GGUF file that is quantized already is refused, see --allow-requantize; what is quantized in a folder is left
    /// alone. Without this flag all weights are written as they are.
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<Recipe>,
    /// Quantize again what is quantized already
    ///
    /// With --quant. It loses more than quantizing the original would.
    #[arg(long)]
    pub allow_requantize: bool,
    /// Importance matrix, from `tallow imatrix` or llama-imatrix
    ///
    /// Weights that multiply large activations are quantized more precisely.
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Overwrite OUT if it exists
    #[arg(long)]
    pub force: bool,
    /// Use only models that are already downloaded
    #[arg(long)]
    pub offline: bool,
}
