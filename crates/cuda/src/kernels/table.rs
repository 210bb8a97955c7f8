//! The kernels, as `cargo xtask kernels` made them.

use super::{Entry, Module};

/// All modules.
pub(crate) const MODULES: &[Module] = &[
    Module {
        name: "attention",
        entries: &[Entry { name: "attend", parameters: 232, threads: 256, shared: 41732 }],
    },
    Module {
        name: "attention_bf16",
        entries: &[Entry { name: "attend", parameters: 232, threads: 256, shared: 43588 }],
    },
    Module {
        name: "attention_f16",
        entries: &[Entry { name: "attend", parameters: 232, threads: 256, shared: 43588 }],
    },
    Module {
        name: "attention_f8",
        entries: &[Entry { name: "attend", parameters: 232, threads: 256, shared: 46212 }],
    },
    Module {
        name: "attention_i8",
        entries: &[Entry { name: "attend", parameters: 232, threads: 256, shared: 46212 }],
    },
    Module { name: "cache", entries: &[Entry { name: "kv_write", parameters: 120, threads: 32, shared: 0 }] },
    Module { name: "embed", entries: &[Entry { name: "embed", parameters: 112, threads: 256, shared: 0 }] },
    Module {
        name: "experts",
        entries: &[
            Entry { name: "experts_of_rows", parameters: 72, threads: 256, shared: 0 },
            Entry { name: "rows_of_experts", parameters: 80, threads: 256, shared: 12352 },
            Entry { name: "order_slots", parameters: 104, threads: 256, shared: 0 },
            Entry { name: "round_slots", parameters: 84, threads: 256, shared: 0 },
            Entry { name: "sum_of_experts", parameters: 100, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "latent_write",
        entries: &[Entry { name: "latent_write", parameters: 144, threads: 256, shared: 64 }],
    },
    Module {
        name: "linear",
        entries: &[
            Entry { name: "linear_1", parameters: 304, threads: 256, shared: 2104 },
            Entry { name: "linear_8", parameters: 304, threads: 256, shared: 16832 },
        ],
    },
    Module {
        name: "lora",
        entries: &[
            Entry { name: "lora_down_1", parameters: 88, threads: 256, shared: 2104 },
            Entry { name: "lora_up_1", parameters: 44, threads: 256, shared: 2048 },
            Entry { name: "lora_down_8", parameters: 88, threads: 256, shared: 16832 },
            Entry { name: "lora_up_8", parameters: 44, threads: 256, shared: 16384 },
        ],
    },
    Module {
        name: "probe",
        entries: &[
            Entry { name: "probe_read", parameters: 24, threads: 256, shared: 0 },
            Entry { name: "probe_fma", parameters: 16, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_1_halves",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_2_halves",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_2_nibbles_min",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_2_whole",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_3_bytes",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_3_table_bytes",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_bytes_min",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_halves",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_few_in_order", parameters: 312, threads: 256, shared: 20864 },
        ],
    },
    Module {
        name: "products_4_halves_min",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_halves_zero",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_few_in_order", parameters: 312, threads: 256, shared: 20864 },
        ],
    },
    Module {
        name: "products_4_table_bytes",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_table_eighths",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_table_exponents",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_table_halves",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_5_bytes_min",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_5_halves",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_5_halves_min",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_6_bytes",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_8_halves",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_few_in_order", parameters: 312, threads: 256, shared: 20864 },
        ],
    },
    Module {
        name: "products_8_singles",
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 264, threads: 256, shared: 0 },
            Entry { name: "products_few_in_order", parameters: 312, threads: 256, shared: 20864 },
        ],
    },
    Module {
        name: "qkv_prep",
        entries: &[Entry { name: "qkv_prep", parameters: 232, threads: 256, shared: 32 }],
    },
    Module {
        name: "quantize",
        entries: &[Entry { name: "quantize", parameters: 104, threads: 256, shared: 40 }],
    },
    Module {
        name: "recurrent",
        entries: &[
            Entry { name: "causal_conv", parameters: 124, threads: 256, shared: 0 },
            Entry { name: "gated_delta", parameters: 184, threads: 128, shared: 2048 },
        ],
    },
    Module { name: "rope", entries: &[Entry { name: "rope", parameters: 92, threads: 256, shared: 0 }] },
    Module {
        name: "route",
        entries: &[Entry { name: "route", parameters: 88, threads: 256, shared: 13440 }],
    },
    Module {
        name: "rowwise",
        entries: &[
            Entry { name: "normalize", parameters: 104, threads: 256, shared: 32 },
            Entry { name: "normalize_narrow", parameters: 104, threads: 256, shared: 0 },
            Entry { name: "activate", parameters: 76, threads: 256, shared: 0 },
            Entry { name: "eltwise", parameters: 80, threads: 256, shared: 0 },
            Entry { name: "gather_rows", parameters: 56, threads: 256, shared: 0 },
            Entry { name: "scatter_add_rows", parameters: 56, threads: 256, shared: 0 },
            Entry { name: "permute_cols", parameters: 56, threads: 256, shared: 0 },
            Entry { name: "copy_bytes", parameters: 48, threads: 256, shared: 0 },
            Entry { name: "copy_halves", parameters: 48, threads: 256, shared: 0 },
            Entry { name: "copy_words", parameters: 48, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "select",
        entries: &[
            Entry { name: "topk", parameters: 76, threads: 1024, shared: 9232 },
            Entry { name: "tail_sum", parameters: 120, threads: 1024, shared: 128 },
        ],
    },
    Module {
        name: "sixteen_bf16",
        entries: &[
            Entry { name: "sixteen_few", parameters: 312, threads: 256, shared: 30080 },
            Entry { name: "sixteen_16", parameters: 256, threads: 256, shared: 20512 },
            Entry { name: "sixteen_32", parameters: 256, threads: 256, shared: 40992 },
            Entry { name: "sixteen_64", parameters: 248, threads: 256, shared: 32768 },
        ],
    },
    Module {
        name: "sixteen_f16",
        entries: &[
            Entry { name: "sixteen_few", parameters: 312, threads: 256, shared: 30336 },
            Entry { name: "sixteen_16", parameters: 256, threads: 256, shared: 20512 },
            Entry { name: "sixteen_32", parameters: 256, threads: 256, shared: 40992 },
            Entry { name: "sixteen_64", parameters: 248, threads: 256, shared: 32768 },
        ],
    },
    Module {
        name: "sixteen_f8",
        entries: &[
            Entry { name: "sixteen_few", parameters: 312, threads: 256, shared: 30080 },
            Entry { name: "sixteen_16", parameters: 256, threads: 256, shared: 20512 },
            Entry { name: "sixteen_32", parameters: 256, threads: 256, shared: 40992 },
            Entry { name: "sixteen_64", parameters: 248, threads: 256, shared: 32768 },
        ],
    },
    Module {
        name: "sixteen_rows",
        entries: &[
            Entry { name: "round_f16", parameters: 96, threads: 256, shared: 40 },
            Entry { name: "round_bf16", parameters: 96, threads: 256, shared: 40 },
            Entry { name: "round_slots_f16", parameters: 76, threads: 256, shared: 0 },
            Entry { name: "round_slots_bf16", parameters: 76, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked",
        entries: &[
            Entry { name: "stacked_1", parameters: 288, threads: 256, shared: 2060 },
            Entry { name: "stacked_8", parameters: 288, threads: 256, shared: 16480 },
        ],
    },
    Module {
        name: "stacked_1_halves",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_2_halves",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_2_nibbles_min",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_2_whole",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_3_bytes",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_3_table_bytes",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_bytes_min",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_halves",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_halves_min",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_halves_zero",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_table_bytes",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_table_eighths",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_table_exponents",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_4_table_halves",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_5_bytes_min",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_5_halves",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_5_halves_min",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_6_bytes",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_8_halves",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_8_singles",
        entries: &[
            Entry { name: "stacked_8", parameters: 316, threads: 256, shared: 0 },
            Entry { name: "stacked_32", parameters: 316, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "stacked_bf16",
        entries: &[
            Entry { name: "stacked_8", parameters: 304, threads: 256, shared: 20640 },
            Entry { name: "stacked_32", parameters: 304, threads: 256, shared: 41376 },
        ],
    },
    Module {
        name: "stacked_f16",
        entries: &[
            Entry { name: "stacked_8", parameters: 304, threads: 256, shared: 20640 },
            Entry { name: "stacked_32", parameters: 304, threads: 256, shared: 41376 },
        ],
    },
    Module {
        name: "stacked_f8",
        entries: &[
            Entry { name: "stacked_8", parameters: 304, threads: 256, shared: 20640 },
            Entry { name: "stacked_32", parameters: 304, threads: 256, shared: 41376 },
        ],
    },
];
