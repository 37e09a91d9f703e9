//! `undraft generate`.

mod draft;
mod dump;
mod memory;
mod output;
mod runner;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use undraft::Device;
use undraft_model::config::GenerationConfig;
use undraft_model::cuda::CudaModel;
use undraft_model::drafters::AdaptiveReport;
use undraft_model::generate::{Acceptance, Finish, GenerateOptions, Generation, generate};
use undraft_model::metal::MetalModel;
use undraft_model::model::CacheConfig;
use undraft_model::sampling::SamplingParams;
use undraft_model::text::{Message, TextCodec};
use undraft_model::wgpu::WgpuModel;
use undraft_model::{Model, ModelError};

use crate::common::{self, DeviceArg, IsaArg};
use draft::{DraftArg, Speculation, WindowArg};
use memory::Memory;
use output::{Bits, Printer};
use runner::Runner;

/// What is continued when nobody says anything.
const EXAMPLE_PROMPT: &str = "import os\nimport sys\n\n\ndef read_config(path):\n    \"\"\"";

#[derive(clap::Args)]
pub struct Args {
    /// Model folder in Hugging Face style; the bundled model by default.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Text to continue. Without any prompt option it is read from standard input; with an empty standard input an
    /// example runs, compared with plain decoding.
    #[arg(long, value_name = "TEXT", group = "source")]
    prompt: Option<String>,
    /// File with the text to continue.
    #[arg(long, value_name = "F", group = "source")]
    prompt_file: Option<PathBuf>,
    /// Token ids to continue, such as 3,17,9; ids are printed.
    #[arg(long, value_name = "IDS", value_delimiter = ',', group = "source")]
    prompt_ids: Option<Vec<u32>>,
    /// Put the prompt into the tokenizer's chat template.
    #[arg(long)]
    chat: bool,
    /// Most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// Who drafts; `mtp` where the model has that head, else `none`.
    #[arg(long, value_enum)]
    draft: Option<DraftArg>,
    /// Drafts a round, all branches of a tree counted: 0 to 64, or `auto` (`auto:K`), as many as pay up to 8 (K), none
    /// where none do. By default 3; 6 for a tree.
    #[arg(long, value_name = "K")]
    window: Option<WindowArg>,
    /// Tokens behind each token of a tree, depth by depth; of all of them the likeliest `--window` are drafted. By default
    /// 3,2,2,1,1,1.
    #[arg(long, value_name = "WIDTHS", value_delimiter = ',')]
    tree_widths: Option<Vec<usize>>,
    /// 0 is greedy; the model's own setting by default.
    #[arg(long, allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Most likely tokens that are kept; 0 keeps all.
    #[arg(long)]
    top_k: Option<usize>,
    /// Probability mass that is kept.
    #[arg(long, allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// When a draft stays: when plain sampling draws the same token, or by the rejection rule.
    #[arg(long, value_enum, default_value = "match")]
    acceptance: AcceptanceArg,
    /// Go on behind end-of-text tokens.
    #[arg(long)]
    ignore_eos: bool,
    /// Also decode plainly, and say how much faster speculation was and whether the tokens are the same.
    #[arg(long)]
    compare: bool,
    /// Write the logits of every prompt position and of every generated token, as used, to a safetensors file.
    #[arg(long, value_name = "F")]
    dump_logits: Option<PathBuf>,
    /// Print one JSON object instead of streaming text.
    #[arg(long)]
    json: bool,
    /// Where the model runs: `cpu`, `cuda` (`cuda:N`), `metal` or `wgpu` (`wgpu:N`).
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceArg,
    /// Threads of the CPU; all by default.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Instruction set of the CPU; the best one by default.
    #[arg(long, value_enum)]
    isa: Option<IsaArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AcceptanceArg {
    /// Tokens of plain sampling, token for token.
    Match,
    /// Distribution of plain sampling.
    Rejection,
}

/// Prompt as token ids, and whether it is the example.
struct Prompt {
    ids: Vec<u32>,
    is_example: bool,
}

pub fn run(args: Args) -> Result<bool> {
    let device = common::device(args.device, args.isa, args.threads)?;
    match args.device {
        DeviceArg::Cpu => run_on::<Model>(&args, &device),
        DeviceArg::Cuda(_) => run_on::<CudaModel>(&args, &device),
        DeviceArg::Metal => run_on::<MetalModel>(&args, &device),
        DeviceArg::Wgpu(_) => run_on::<WgpuModel>(&args, &device),
    }
}

fn run_on<M: Runner>(args: &Args, device: &Device) -> Result<bool> {
    let dir = match &args.model {
        Some(dir) => dir.clone(),
        None => bundled_model()?,
    };
    let bar = progress("loading");
    let model = M::load(&dir, device, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    let codec = TextCodec::from_dir(&dir, model.config().vocab_size)?;
    let settings = GenerationConfig::from_dir(&dir)?;
    let prompt = read_prompt(args, codec.as_ref())?;
    let compare = args.compare || prompt.is_example;
    let draft = match args.draft {
        Some(draft) => draft,
        None if model.has_mtp() => DraftArg::Mtp,
        None => DraftArg::None,
    };
    let window = WindowArg::new(args.window, draft);
    let options = options(args, &settings, window)?;
    check_tree(args, draft)?;
    if compare && options.acceptance == Acceptance::Rejection && options.sampling.temperature > 0.0 {
        bail!(
            "`--compare` with `--acceptance rejection` needs `--temperature 0`: the rejection rule keeps the distribution, not the tokens"
        );
    }
    let positions = model.config().max_position_embeddings;
    if prompt.ids.len() >= positions {
        bail!(
            "the prompt has {} tokens, expected at most {} for this model's context",
            prompt.ids.len(),
            positions - 1
        );
    }
    // With room for a whole window behind the last token.
    let capacity = positions.min(prompt.ids.len().saturating_add(options.max_tokens).saturating_add(options.window));
    let cache_config = CacheConfig { capacity, max_window: options.window + 1 };
    let mut cache = model.new_cache(cache_config)?;
    if prompt.is_example && !args.json {
        eprintln!("no prompt given; continuing an example, compared with plain decoding:\n{EXAMPLE_PROMPT}");
    }

    let wants_dump = args.dump_logits.is_some();
    let text = if args.prompt_ids.is_some() { None } else { codec.as_ref() };
    let mut printer = Printer::new(text, !args.json, compare, wants_dump);
    let (mut speculation, drafter_bytes) =
        Speculation::new(&model, draft, window, args.tree_widths.as_deref(), capacity)?;
    let speculated = generate(&model, &mut cache, &prompt.ids, &options, speculation.drafter(), &mut printer)?;
    let (kv_bytes, state_bytes) = M::cache_bytes(&cache);
    let memory = Memory {
        weights: model.weight_bytes(),
        kv: kv_bytes,
        states: state_bytes,
        drafter: drafter_bytes,
        peak: memory::peak(),
    };
    let text = printer.finish()?;
    if let Some(path) = &args.dump_logits {
        dump::write(path, &printer.dump(), &prompt.ids, &speculated.tokens, model.config().vocab_size)?;
    }
    let plain = match compare {
        // Who closed the pipe wants no more, and what came is cut short.
        _ if speculated.finish == Finish::Interrupted => None,
        false => None,
        true => {
            let options = GenerateOptions { window: 0, ..options.clone() };
            let mut bits = Bits::default();
            let generation = generate(&model, &mut cache, &prompt.ids, &options, None, &mut bits)?;
            let same = generation.tokens == speculated.tokens && bits.logits == printer.bits.logits;
            Some((generation, same))
        }
    };
    let report = Report {
        draft,
        window: options.window,
        adaptive: speculation.report(),
        speculated: &speculated,
        plain: plain.as_ref(),
        memory,
    };
    if args.json {
        print_json(&dir, &prompt.ids, text.as_deref(), &report)?;
    } else {
        print_report(&report);
    }
    Ok(plain.is_none_or(|(_, same)| same))
}

fn bundled_model() -> Result<PathBuf> {
    const NAME: &str = "models/qwen3_5-tiny-mtp";
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(NAME);
    [PathBuf::from(NAME), built].into_iter().find(|dir| dir.join("config.json").is_file()).with_context(|| {
        format!(
            "the bundled model `{NAME}` is not here, expected it below the current folder; name one with `--model DIR`"
        )
    })
}

fn progress(what: &'static str) -> ProgressBar {
    // Hidden by indicatif where standard error is not a terminal.
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg:>10} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

fn read_prompt(args: &Args, codec: Option<&TextCodec>) -> Result<Prompt> {
    if let Some(ids) = &args.prompt_ids {
        if args.chat {
            bail!("`--chat` needs a text, not `--prompt-ids`");
        }
        return Ok(Prompt { ids: ids.clone(), is_example: false });
    }
    let Some(codec) = codec else {
        bail!("the model has no tokenizer.json, expected the prompt as `--prompt-ids` such as 3,17,9");
    };
    let utf8 = |bytes: Vec<u8>, from: &str| match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => bail!("{from} is not UTF-8: byte {} starts no character", error.utf8_error().valid_up_to()),
    };
    let (text, is_example) = if let Some(text) = &args.prompt {
        (text.clone(), false)
    } else if let Some(file) = &args.prompt_file {
        let bytes = std::fs::read(file).map_err(|e| anyhow::anyhow!("cannot read `{}`: {e}", file.display()))?;
        (utf8(bytes, &format!("`{}`", file.display()))?, false)
    } else {
        let mut bytes = Vec::new();
        if !std::io::stdin().is_terminal() {
            std::io::stdin()
                .lock()
                .read_to_end(&mut bytes)
                .map_err(|e| anyhow::anyhow!("cannot read standard input: {e}"))?;
        }
        match bytes.is_empty() {
            true => (EXAMPLE_PROMPT.to_string(), true),
            false => (utf8(bytes, "standard input")?, false),
        }
    };
    if text.is_empty() {
        return Err(ModelError::EmptyPrompt.into());
    }
    let text = match args.chat {
        true => codec.apply_chat_template(&[Message { role: "user".into(), content: text }], true)?,
        false => text,
    };
    Ok(Prompt { ids: codec.encode(&text)?, is_example })
}

fn options(args: &Args, settings: &GenerationConfig, window: WindowArg) -> Result<GenerateOptions> {
    let samples = settings.do_sample == Some(true);
    let own = |x: Option<f64>, fallback: f64| if samples { x.unwrap_or(fallback) } else { fallback };
    let temperature = args.temperature.unwrap_or(own(settings.temperature, if samples { 1.0 } else { 0.0 }));
    let sampling = SamplingParams {
        temperature,
        top_k: args.top_k.unwrap_or(if samples { settings.top_k.unwrap_or(0) } else { 0 }),
        top_p: args.top_p.unwrap_or(own(settings.top_p, 1.0)),
        seed: args.seed,
    };
    sampling.check()?;
    if args.max_tokens == 0 {
        bail!("`--max-tokens` is 0, expected at least 1");
    }
    Ok(GenerateOptions {
        max_tokens: args.max_tokens,
        sampling,
        acceptance: match args.acceptance {
            AcceptanceArg::Match => Acceptance::Match,
            AcceptanceArg::Rejection => Acceptance::Rejection,
        },
        window: window.max(),
        stop_tokens: if args.ignore_eos { Vec::new() } else { settings.eos_token_ids.clone() },
    })
}

/// Options of trees belong to trees, which the rejection rule does not decide about.
fn check_tree(args: &Args, draft: DraftArg) -> Result<()> {
    if draft != DraftArg::MtpTree {
        if args.tree_widths.is_some() {
            bail!("`--tree-widths` needs `--draft mtp-tree`, not `--draft {}`", draft.name());
        }
        return Ok(());
    }
    if args.acceptance == AcceptanceArg::Rejection {
        bail!("`--acceptance rejection` decides about chains, expected `--acceptance match` with `--draft mtp-tree`");
    }
    Ok(())
}

fn rate(tokens: usize, time: std::time::Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}

/// What is told of a run.
struct Report<'a> {
    draft: DraftArg,
    /// Most drafts a round.
    window: usize,
    adaptive: Option<&'a AdaptiveReport>,
    speculated: &'a Generation,
    /// Plain decoding, and whether it gave the same tokens from the same logits.
    plain: Option<&'a (Generation, bool)>,
    memory: Memory,
}

fn print_report(report: &Report<'_>) {
    let g = report.speculated;
    eprintln!();
    let prefill = rate(g.prompt_tokens, g.prefill_time);
    eprintln!("prompt     {} tokens, {prefill:.0} tokens/s", g.prompt_tokens);
    eprintln!(
        "generated  {} tokens, {:.0} tokens/s, ended by {}",
        g.tokens.len(),
        g.tokens_per_second(),
        output::finish(g.finish)
    );
    let auto = if report.adaptive.is_some() { "auto, at most " } else { "" };
    eprintln!(
        "drafts     {}, window {auto}{}: {} rounds, {} drafted, {} accepted, {:.2} tokens a round",
        report.draft.name(),
        report.window,
        g.rounds,
        g.drafted,
        g.accepted,
        g.tokens_per_round(),
    );
    if let Some(adaptive) = report.adaptive {
        let rounds: Vec<String> = (adaptive.rounds.iter().enumerate().filter(|&(_, &n)| n > 0))
            .map(|(drafts, rounds)| format!("{drafts} in {rounds}"))
            .collect();
        eprintln!(
            "window     mostly {} drafts a round, {} probes; asked for {} rounds",
            adaptive.most_often(),
            adaptive.probes,
            rounds.join(", ")
        );
    }
    let Memory { weights, kv, states, drafter, peak } = report.memory;
    eprintln!(
        "memory     {} weights, {} keys and values, {} states and logs, {} drafter, peak {}",
        common::bytes(weights),
        common::bytes(kv),
        common::bytes(states),
        common::bytes(drafter),
        peak.map_or_else(|| "not available".into(), common::bytes)
    );
    if let Some((plain, same)) = report.plain {
        let ratio = g.tokens_per_second() / plain.tokens_per_second();
        eprintln!("compare    plain decoding {:.0} tokens/s, speed ratio {ratio:.2}", plain.tokens_per_second());
        eprintln!("identical: {}", if *same { "yes" } else { "no" });
    }
}

fn print_json(dir: &Path, prompt_ids: &[u32], text: Option<&str>, report: &Report<'_>) -> Result<()> {
    let Report { draft, window, adaptive, speculated: g, plain, memory } = report;
    let compare = plain.map(|(plain, same)| {
        json!({
            "plain_tokens_per_second": plain.tokens_per_second(),
            "speed_ratio": g.tokens_per_second() / plain.tokens_per_second(),
            "identical": same,
            "plain_token_ids": plain.tokens,
        })
    });
    let adaptive = adaptive.map(|adaptive| {
        json!({
            "rounds_by_drafts": adaptive.rounds, "probes": adaptive.probes, "most_often": adaptive.most_often(),
        })
    });
    let object = json!({
        "model": dir.display().to_string(),
        "prompt_ids": prompt_ids,
        "token_ids": g.tokens,
        "text": text,
        "finish": output::finish(g.finish),
        "report": {
            "draft": draft.name(), "window": window, "adaptive_window": adaptive,
            "prompt_tokens": g.prompt_tokens, "tokens": g.tokens.len(),
            "tokens_per_second": g.tokens_per_second(), "prefill_tokens_per_second": rate(g.prompt_tokens, g.prefill_time),
            "rounds": g.rounds, "drafted": g.drafted, "accepted": g.accepted, "tokens_per_round": g.tokens_per_round(),
            "weight_bytes": memory.weights, "cache_bytes": memory.kv + memory.states, "kv_bytes": memory.kv,
            "state_bytes": memory.states, "drafter_bytes": memory.drafter, "peak_bytes": memory.peak,
        },
        "compare": compare,
    });
    outln!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}
