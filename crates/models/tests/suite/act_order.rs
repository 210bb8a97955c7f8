//! Mixtures of experts with act-order. No golden is one: where a golden's block stands for each expert, and routing weights add up to
//! 1, the reference is the golden's.

use tallow_checkpoint::{Checkpoint, Settings, Stored, StoredTensors};
use tallow_core::Backend;
use tallow_models::Model;
use tallow_support::golden;

use crate::devices::{cpu, cuda, gpu};
use crate::goldens::{Case, GPU};

const NAME: &str = "quant/gptq-4bit-g32-actorder";
const EXPERTS: usize = 4;

/// The golden with experts in place of its blocks.
pub(crate) fn mixture() -> Model {
    let dense = Checkpoint::open(&golden(NAME)).unwrap();
    let Settings::Hf(mut config) = dense.settings.clone() else { panic!("{NAME} is no folder") };
    config["architectures"] = ["MixtralForCausalLM"].as_slice().into();
    config["model_type"] = "mixtral".into();
    config["num_local_experts"] = EXPERTS.into();
    config["num_experts_per_tok"] = 2.into();
    let table = dense.get("model.embed_tokens.weight").unwrap();
    let bytes = EXPERTS * table.bytes().len() / table.shape[0];
    let router = Stored {
        shape: vec![EXPERTS, table.shape[1]],
        bytes: table.bytes.start..table.bytes.start + bytes,
        ..table.clone()
    };
    let mut tensors = StoredTensors::new();
    for (name, tensor) in dense.tensors() {
        let Some((layer, part)) = name.split_once(".mlp.") else {
            tensors.insert(name.to_owned(), tensor.clone());
            continue;
        };
        let part = match part {
            "gate_proj.weight" => "w1",
            "up_proj.weight" => "w3",
            "down_proj.weight" => "w2",
            other => panic!("{NAME} has a tensor mlp.{other}"),
        };
        let block = format!("{layer}.block_sparse_moe");
        tensors.insert(format!("{block}.gate.weight"), router.clone());
        for expert in 0..EXPERTS {
            tensors.insert(format!("{block}.experts.{expert}.{part}.weight"), tensor.clone());
        }
    }
    let model = Model::new(Checkpoint::in_memory(&dense.path, Settings::Hf(config), tensors)).unwrap();
    assert!(model.has_shuffled_experts());
    model
}

fn experts_with_act_order_on<B: Backend>(b: &B, slack: f32) {
    let (case, model) = (Case::read(NAME), mixture());
    let far = case.distance(b, &model);
    println!("{far:.2e} of {:.0e}", case.tolerance());
    assert!(far <= slack * case.tolerance(), "off by {far}");
}

#[test]
fn experts_with_act_order() {
    experts_with_act_order_on(&cpu(), 1.0);
}

#[test]
fn experts_with_act_order_on_a_gpu() {
    gpu().iter().for_each(|b| experts_with_act_order_on(b, GPU));
}

#[test]
fn experts_with_act_order_on_cuda() {
    experts_with_act_order_on(&cuda(), GPU);
}
