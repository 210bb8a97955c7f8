//! The kernels, as `cargo xtask kernels` made them.

use super::{Entry, Module};

/// All modules.
pub(crate) const MODULES: &[Module] = &[
    Module {
        name: "attention",
        ptx: include_str!("../../ptx/attention.ptx"),
        entries: &[
            Entry { name: "attend", parameters: 228, threads: 256, shared: 41728 },
            Entry { name: "merge_units", parameters: 80, threads: 64, shared: 0 },
        ],
    },
    Module {
        name: "cache",
        ptx: include_str!("../../ptx/cache.ptx"),
        entries: &[Entry { name: "kv_write", parameters: 120, threads: 32, shared: 0 }],
    },
    Module {
        name: "embed",
        ptx: include_str!("../../ptx/embed.ptx"),
        entries: &[Entry { name: "embed", parameters: 112, threads: 256, shared: 0 }],
    },
    Module {
        name: "linear",
        ptx: include_str!("../../ptx/linear.ptx"),
        entries: &[
            Entry { name: "linear_1", parameters: 304, threads: 256, shared: 2104 },
            Entry { name: "linear_8", parameters: 304, threads: 256, shared: 16832 },
        ],
    },
    Module {
        name: "probe",
        ptx: include_str!("../../ptx/probe.ptx"),
        entries: &[
            Entry { name: "probe_read", parameters: 24, threads: 256, shared: 0 },
            Entry { name: "probe_fma", parameters: 16, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_1_halves",
        ptx: include_str!("../../ptx/products_1_halves.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_2_halves",
        ptx: include_str!("../../ptx/products_2_halves.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_2_nibbles_min",
        ptx: include_str!("../../ptx/products_2_nibbles_min.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_2_whole",
        ptx: include_str!("../../ptx/products_2_whole.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_3_bytes",
        ptx: include_str!("../../ptx/products_3_bytes.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_3_table_bytes",
        ptx: include_str!("../../ptx/products_3_table_bytes.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_bytes_min",
        ptx: include_str!("../../ptx/products_4_bytes_min.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_halves",
        ptx: include_str!("../../ptx/products_4_halves.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_halves_min",
        ptx: include_str!("../../ptx/products_4_halves_min.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_halves_zero",
        ptx: include_str!("../../ptx/products_4_halves_zero.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_table_bytes",
        ptx: include_str!("../../ptx/products_4_table_bytes.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_table_eighths",
        ptx: include_str!("../../ptx/products_4_table_eighths.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_table_exponents",
        ptx: include_str!("../../ptx/products_4_table_exponents.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_4_table_halves",
        ptx: include_str!("../../ptx/products_4_table_halves.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_5_bytes_min",
        ptx: include_str!("../../ptx/products_5_bytes_min.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_5_halves",
        ptx: include_str!("../../ptx/products_5_halves.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_5_halves_min",
        ptx: include_str!("../../ptx/products_5_halves_min.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_6_bytes",
        ptx: include_str!("../../ptx/products_6_bytes.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_8_halves",
        ptx: include_str!("../../ptx/products_8_halves.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "products_8_singles",
        ptx: include_str!("../../ptx/products_8_singles.ptx"),
        entries: &[
            Entry { name: "products_few", parameters: 312, threads: 256, shared: 20864 },
            Entry { name: "products_8", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_16", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_32", parameters: 272, threads: 256, shared: 0 },
            Entry { name: "products_64", parameters: 272, threads: 256, shared: 0 },
        ],
    },
    Module {
        name: "quantize",
        ptx: include_str!("../../ptx/quantize.ptx"),
        entries: &[Entry { name: "quantize", parameters: 96, threads: 256, shared: 40 }],
    },
    Module {
        name: "recurrent",
        ptx: include_str!("../../ptx/recurrent.ptx"),
        entries: &[Entry { name: "gated_delta", parameters: 184, threads: 128, shared: 2048 }],
    },
    Module {
        name: "rope",
        ptx: include_str!("../../ptx/rope.ptx"),
        entries: &[Entry { name: "rope", parameters: 88, threads: 256, shared: 0 }],
    },
    Module {
        name: "route",
        ptx: include_str!("../../ptx/route.ptx"),
        entries: &[Entry { name: "route", parameters: 88, threads: 256, shared: 13440 }],
    },
    Module {
        name: "rowwise",
        ptx: include_str!("../../ptx/rowwise.ptx"),
        entries: &[
            Entry { name: "normalize", parameters: 104, threads: 256, shared: 32 },
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
        ptx: include_str!("../../ptx/select.ptx"),
        entries: &[
            Entry { name: "topk", parameters: 76, threads: 1024, shared: 9216 },
            Entry { name: "tail_sum", parameters: 120, threads: 1024, shared: 128 },
        ],
    },
];
