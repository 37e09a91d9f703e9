//! `undraft generate`.

mod dump;
mod output;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use undraft_model::config::GenerationConfig;
use undraft_model::drafters::{Drafter, LookupDrafter, LookupOptions, MtpDrafter};
use undraft_model::generate::{Acceptance, Finish, GenerateOptions, Generation, generate};
use undraft_model::model::CacheConfig;
use undraft_model::sampling::SamplingParams;
use undraft_model::text::{Message, TextCodec};
use undraft_model::{Model, ModelError};

use crate::common::{self, IsaArg};
use output::{Bits, Printer};

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
    /// Drafts a round.
    #[arg(long, value_name = "K", default_value_t = 3)]
    window: usize,
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
    /// Threads; all by default.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Instruction set; the best one by default.
    #[arg(long, value_enum)]
    isa: Option<IsaArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DraftArg {
    /// Plain decoding.
    None,
    /// The model's own head for the token after the next.
    Mtp,
    /// What followed the last n tokens when they came before.
    Lookup,
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
    let device = common::device(args.isa, args.threads)?;
    let dir = match &args.model {
        Some(dir) => dir.clone(),
        None => bundled_model()?,
    };
    let bar = progress("loading");
    let model = Model::load(&dir, &device, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    let codec = TextCodec::from_dir(&dir, model.config().vocab_size)?;
    let settings = GenerationConfig::from_dir(&dir)?;
    let prompt = read_prompt(&args, codec.as_ref())?;
    let compare = args.compare || prompt.is_example;
    let options = options(&args, &settings)?;
    if compare && options.acceptance == Acceptance::Rejection && options.sampling.temperature > 0.0 {
        bail!(
            "`--compare` with `--acceptance rejection` needs `--temperature 0`: the rejection rule keeps the distribution, not the tokens"
        );
    }
    let draft = match (args.draft, model.mtp()) {
        (Some(draft), _) => draft,
        (None, Some(_)) => DraftArg::Mtp,
        (None, None) => DraftArg::None,
    };
    let positions = model.config().max_position_embeddings;
    if prompt.ids.len() >= positions {
        bail!(
            "the prompt has {} tokens, expected at most {} for this model's context",
            prompt.ids.len(),
            positions - 1
        );
    }
    let capacity = positions.min(prompt.ids.len().saturating_add(options.max_tokens));
    let cache_config = CacheConfig { capacity, max_window: options.window + 1 };
    let mut cache = model.new_cache(cache_config)?;
    if prompt.is_example && !args.json {
        eprintln!("no prompt given; continuing an example, compared with plain decoding:\n{EXAMPLE_PROMPT}");
    }

    let wants_dump = args.dump_logits.is_some();
    let text = if args.prompt_ids.is_some() { None } else { codec.as_ref() };
    let mut printer = Printer::new(text, !args.json, wants_dump);
    let speculated = with_drafter(&model, draft, capacity, |drafter| {
        generate(&model, &mut cache, &prompt.ids, &options, drafter, &mut printer)
    })?;
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
    let memory = (model.weight_bytes(), cache.memory());
    if args.json {
        let ids = &prompt.ids;
        print_json(&dir, ids, draft, &options, &speculated, text.as_deref(), plain.as_ref(), memory)?;
    } else {
        print_report(draft, &options, &speculated, plain.as_ref(), memory);
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

fn options(args: &Args, settings: &GenerationConfig) -> Result<GenerateOptions> {
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
    if args.window > 64 {
        bail!("`--window` is {}, expected 0..=64", args.window);
    }
    Ok(GenerateOptions {
        max_tokens: args.max_tokens,
        sampling,
        acceptance: match args.acceptance {
            AcceptanceArg::Match => Acceptance::Match,
            AcceptanceArg::Rejection => Acceptance::Rejection,
        },
        window: args.window,
        stop_tokens: if args.ignore_eos { Vec::new() } else { settings.eos_token_ids.clone() },
    })
}

fn with_drafter<T>(
    model: &Model,
    draft: DraftArg,
    capacity: usize,
    run: impl FnOnce(Option<&mut (dyn Drafter + '_)>) -> undraft_model::Result<T>,
) -> Result<T> {
    Ok(match draft {
        DraftArg::None => run(None)?,
        DraftArg::Lookup => run(Some(&mut LookupDrafter::new(LookupOptions::default())))?,
        DraftArg::Mtp => match model.mtp() {
            Some(head) => run(Some(&mut MtpDrafter::new(head, capacity)?))?,
            None => {
                bail!("`--draft mtp` needs a model with `mtp.*` tensors, this one has none; use `lookup` or `none`")
            }
        },
    })
}

fn name(draft: DraftArg) -> &'static str {
    match draft {
        DraftArg::None => "none",
        DraftArg::Mtp => "mtp",
        DraftArg::Lookup => "lookup",
    }
}

fn rate(tokens: usize, time: std::time::Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}

fn print_report(
    draft: DraftArg,
    options: &GenerateOptions,
    g: &Generation,
    plain: Option<&(Generation, bool)>,
    (weights, cache): (usize, usize),
) {
    eprintln!();
    let prefill = rate(g.prompt_tokens, g.prefill_time);
    eprintln!("prompt     {} tokens, {prefill:.0} tokens/s", g.prompt_tokens);
    eprintln!(
        "generated  {} tokens, {:.0} tokens/s, ended by {}",
        g.tokens.len(),
        g.tokens_per_second(),
        output::finish(g.finish)
    );
    eprintln!(
        "drafts     {}, window {}: {} rounds, {} drafted, {} accepted, {:.2} tokens a round",
        name(draft),
        if draft == DraftArg::None { 0 } else { options.window },
        g.rounds,
        g.drafted,
        g.accepted,
        g.tokens_per_round(),
    );
    eprintln!("memory     {} weights, {} cache", common::bytes(weights), common::bytes(cache));
    if let Some((plain, same)) = plain {
        let ratio = g.tokens_per_second() / plain.tokens_per_second();
        eprintln!("compare    plain decoding {:.0} tokens/s, speed ratio {ratio:.2}", plain.tokens_per_second());
        eprintln!("identical: {}", if *same { "yes" } else { "no" });
    }
}

#[allow(clippy::too_many_arguments)]
fn print_json(
    dir: &Path,
    prompt_ids: &[u32],
    draft: DraftArg,
    options: &GenerateOptions,
    g: &Generation,
    text: Option<&str>,
    plain: Option<&(Generation, bool)>,
    (weights, cache): (usize, usize),
) -> Result<()> {
    let compare = plain.map(|(plain, same)| {
        json!({
            "plain_tokens_per_second": plain.tokens_per_second(),
            "speed_ratio": g.tokens_per_second() / plain.tokens_per_second(),
            "identical": same,
            "plain_token_ids": plain.tokens,
        })
    });
    let object = json!({
        "model": dir.display().to_string(),
        "prompt_ids": prompt_ids,
        "token_ids": g.tokens,
        "text": text,
        "finish": output::finish(g.finish),
        "report": {
            "draft": name(draft), "window": options.window, "prompt_tokens": g.prompt_tokens, "tokens": g.tokens.len(),
            "tokens_per_second": g.tokens_per_second(), "prefill_tokens_per_second": rate(g.prompt_tokens, g.prefill_time),
            "rounds": g.rounds, "drafted": g.drafted, "accepted": g.accepted, "tokens_per_round": g.tokens_per_round(),
            "weight_bytes": weights, "cache_bytes": cache,
        },
        "compare": compare,
    });
    println!("{}", serde_json::to_string_pretty(&object)?);
    Ok(())
}
