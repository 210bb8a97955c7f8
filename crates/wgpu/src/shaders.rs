//! The WGSL files of `shaders`, compiled into the program.

use crate::preprocess::File;

macro_rules! files {
    ($($name:literal)*) => {
        &[$(File { name: concat!($name, ".wgsl"), text: include_str!(concat!("shaders/", $name, ".wgsl")) }),*]
    };
}

/// All files: kernels first, then what they include.
pub(crate) static FILES: &[File] = files! {
    "activation" "attend" "attend_merge" "causal_conv" "causal_conv_state" "copy" "copy_packed" "dequant" "eltwise"
    "gated_delta" "gather_rows" "gemm" "gemv" "gemv_glu" "normalize" "permute_cols" "probe_fma" "probe_read" "qkv_prep"
    "route" "scatter_add_rows" "topk"

    "activations" "bits" "causal_conv_window" "elementwise" "float16" "kv_codes" "kv_layout" "kv_load" "kv_store"
    "linear" "linear_parts" "online_softmax" "qk_norm_rope" "reduce" "sort_key" "strands" "weights" "weights_rows"

    "formats/bf16" "formats/f16" "formats/f32" "formats/f8" "formats/four_bits" "formats/iq4_nl" "formats/iq4_xs"
    "formats/mxfp4" "formats/nvfp4" "formats/q1_0" "formats/q2_0" "formats/q2_k" "formats/q3_k" "formats/q4_0"
    "formats/q4_1" "formats/q4_k" "formats/q5_0" "formats/q5_1" "formats/q5_k" "formats/q6_k" "formats/q8_0"
    "formats/q8_k" "formats/six_bits" "formats/ternary" "formats/three_bits"
};
