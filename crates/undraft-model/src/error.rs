//! The one error type of the runner: fields, not strings.

use std::path::PathBuf;

use crate::weights::HeaderProblem;

/// Result of anything in this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// What was wrong with a model folder, a prompt or a call.
///
/// A message is one lower-case sentence that names the file, tensor or key, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    // Files.
    /// The operating system refused to open, read or map a file.
    #[error("cannot read `{}`: {source}", file.display())]
    Io {
        /// File or folder.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A folder, pipe or device stands where a file should be.
    #[error("`{}` is not a regular file", file.display())]
    NotAFile {
        /// The path.
        file: PathBuf,
    },
    /// A file is larger than anything of its kind.
    #[error("`{}` has more than {limit} bytes, the most that is read from such a file", file.display())]
    FileTooLarge {
        /// The file.
        file: PathBuf,
        /// Most bytes allowed.
        limit: u64,
    },
    /// A text file is not UTF-8.
    #[error("`{}` is not valid UTF-8: byte {offset} starts no character", file.display())]
    InvalidUtf8 {
        /// The file.
        file: PathBuf,
        /// Offset of the first bad byte.
        offset: usize,
    },
    /// A JSON file does not parse, or does not have the form that its kind has.
    #[error("`{}` is not JSON of the expected form: {source}", file.display())]
    InvalidJson {
        /// The file.
        file: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },

    // Keys of JSON files.
    /// A key that has no safe default is absent.
    #[error("`{}`: key `{key}` is missing, expected {expected}", file.display())]
    MissingKey {
        /// The file.
        file: PathBuf,
        /// The key, with the keys around it: `text_config.hidden_size`.
        key: String,
        /// What it must be.
        expected: String,
    },
    /// A key has the wrong type, lies outside its range or asks for something unsupported.
    #[error("`{}`: key `{key}` is {found}, expected {expected}", file.display())]
    InvalidKey {
        /// The file.
        file: PathBuf,
        /// The key, with the keys around it.
        key: String,
        /// The value in the file, shortened.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// One count must be a multiple of another.
    #[error("`{}`: key `{key}` is {found}, expected a multiple of `{of_key}` = {of}", file.display())]
    NotMultiple {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: usize,
        /// The key that must divide it.
        of_key: String,
        /// Its value.
        of: usize,
    },
    /// Keys that are fine one by one describe a tensor that no machine holds.
    #[error("`{}`: keys {keys} describe a tensor of more than {limit} elements", file.display())]
    TensorTooLarge {
        /// The file.
        file: PathBuf,
        /// The keys with their values, joined by `x`.
        keys: String,
        /// Most elements allowed.
        limit: usize,
    },

    // Weights.
    /// A folder has no safetensors file.
    #[error(
        "`{}` holds no weights, expected `model.safetensors`, `model.safetensors.index.json` with its shards, \
         or other `*.safetensors` files", dir.display()
    )]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// The header of a safetensors file is wrong.
    #[error("`{}`: {problem}", file.display())]
    InvalidHeader {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: HeaderProblem,
    },
    /// The index names a shard that is not a plain file name.
    #[error(
        "`{}`: tensor `{tensor}` is said to be in `{shard}`, expected the name of a file in the same folder",
        index.display()
    )]
    ShardPath {
        /// The index file.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The path in the index.
        shard: String,
    },
    /// The index names a shard that is not there.
    #[error("`{}`: tensor `{tensor}` is said to be in `{shard}`, but there is no such file", index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The first tensor of that shard.
        tensor: String,
        /// The shard's file name.
        shard: String,
    },
    /// The index names a tensor that its shard does not hold.
    #[error("`{}`: tensor `{tensor}` is said to be in `{shard}`, but that file does not hold it", index.display())]
    NotInShard {
        /// The index file.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard's file name.
        shard: String,
    },
    /// Two shards hold a tensor of the same name.
    #[error("tensor `{tensor}` is in `{}` and again in `{}`, expected it once", first.display(), second.display())]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// File that holds it.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
    /// The configuration needs a tensor that no file holds.
    #[error("tensor `{tensor}` is in no file of `{}`{}", dir.display(), nearest_hint(nearest))]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// The model folder.
        dir: PathBuf,
        /// The existing name that differs least, if one is close.
        nearest: Option<String>,
    },
    /// Files hold tensors that the configuration has no use for.
    #[error("unexpected tensor `{first}`{} in `{}`: `config.json` does not describe it", and_more(*count), dir.display())]
    UnexpectedTensor {
        /// The first such tensor, by name.
        first: String,
        /// How many there are.
        count: usize,
        /// The model folder.
        dir: PathBuf,
    },
    /// A tensor has the wrong shape.
    #[error("tensor `{tensor}` in `{}` has shape {found:?}, expected {expected:?}", file.display())]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape that the configuration gives.
        expected: Vec<usize>,
    },
    /// A tensor's elements are not floats of a supported width.
    #[error("tensor `{tensor}` in `{}` has dtype {found}, expected BF16, F16 or F32", file.display())]
    TensorDtype {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// Dtype in the file.
        found: safetensors::Dtype,
    },
    /// A weight is NaN or infinite.
    #[error("tensor `{tensor}` in `{}` has {value} at element {index}, expected finite weights", file.display())]
    NonFiniteWeight {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// Flat index of the first such element.
        index: usize,
        /// The element.
        value: f32,
    },

    // Text.
    /// The tokenizer file does not describe a tokenizer.
    #[error("`{}` is no usable tokenizer: {source}", file.display())]
    Tokenizer {
        /// The file.
        file: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer has ids for which the model has no embedding.
    #[error(
        "`{}`: token `{token}` has id {id}, expected ids below `vocab_size` = {vocab_size} of `config.json`",
        file.display()
    )]
    TokenizerVocab {
        /// The tokenizer file.
        file: PathBuf,
        /// The token with the largest id.
        token: String,
        /// That id.
        id: u64,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// Text could not be turned into ids, or ids into text.
    #[error("the tokenizer of `{}` failed: {source}", file.display())]
    Tokenize {
        /// The tokenizer file.
        file: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A chat was asked for, and the folder has no chat template.
    #[error("`{}` has no chat template, expected `chat_template.jinja` or key `chat_template` of `tokenizer_config.json`", dir.display())]
    NoChatTemplate {
        /// The model folder.
        dir: PathBuf,
    },
    /// The chat template does not compile, or refused the messages.
    #[error("the chat template of `{}` failed: {source}", file.display())]
    ChatTemplate {
        /// File that holds the template.
        file: PathBuf,
        /// Where and why.
        source: minijinja::Error,
    },

    // Drafting and sampling.
    /// Lengths of n-grams that prompt lookup cannot have.
    #[error("prompt lookup of n-grams of {min_ngram}..={max_ngram} tokens, expected a rising range within 1..=16")]
    LookupOptions {
        /// Shortest.
        min_ngram: usize,
        /// Longest.
        max_ngram: usize,
    },
    /// A sampling parameter lies outside its range.
    #[error("`{name}` is {found}, expected {expected}")]
    SamplingParam {
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// Logits from which no token can be drawn.
    #[error("logits of position {position}: {problem}")]
    Logits {
        /// Position of the token to be drawn.
        position: u64,
        /// What is wrong.
        problem: LogitsProblem,
    },
    /// A distribution given to the rejection sampler is none.
    #[error("`{name}` of position {position} is no distribution: {problem}")]
    Distribution {
        /// `p`, the target's, or `q`, the drafter's.
        name: &'static str,
        /// Position of the token to be drawn.
        position: u64,
        /// What is wrong.
        problem: DistributionProblem,
    },

    // Running a model.
    /// A call of the device failed half way.
    #[error("a call failed half way and left the cache in between; reset it")]
    CacheTorn,
    /// The model runs elsewhere.
    #[error("the device is `{found}`, expected {expected}")]
    OtherDevice {
        /// Device that came.
        found: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The device does not run such a model, or such a call.
    #[error("{what} is not there on `{device}` yet: {hint}")]
    NotOnDevice {
        /// The device.
        device: &'static str,
        /// What was asked for.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// The state pool refused, or an operation on the states.
    #[error(transparent)]
    Pool(#[from] undraft::Error),
    /// The CUDA device failed, or has not enough memory.
    #[error(transparent)]
    Cuda(#[from] undraft::cuda::CudaError),
    /// The Metal device failed, or has not enough memory.
    #[error(transparent)]
    Metal(#[from] undraft::metal::MetalError),
    /// wgpu's device failed, or has not enough memory.
    #[error(transparent)]
    Wgpu(#[from] undraft::wgpu::WgpuError),
    /// Memory could not be had.
    #[error("{what} need {bytes} bytes, which the system refused; ask for a smaller capacity")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What for.
        what: &'static str,
    },
    /// A cache should hold more positions than the model can have, or none.
    #[error("capacity is {found} positions, expected 1..={max}, the model's `max_position_embeddings`")]
    Capacity {
        /// Positions asked for.
        found: usize,
        /// Most that there can be.
        max: usize,
    },
    /// A sequence would grow beyond its cache.
    #[error("{more} tokens behind {len} do not fit: the cache has room for {capacity} positions")]
    CacheFull {
        /// Positions in use.
        len: usize,
        /// Tokens that came.
        more: usize,
        /// Positions there is room for.
        capacity: usize,
    },
    /// A cache was made for another model.
    #[error("the cache was made for another model, or for another copy of this one")]
    ForeignCache,
    /// There is nothing to run.
    #[error("the prompt has no tokens, expected at least one")]
    EmptyPrompt,
    /// A token has no embedding.
    #[error("token {index} has id {id}, expected an id below `vocab_size` = {vocab_size}")]
    TokenId {
        /// Place among the tokens that came.
        index: usize,
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A token of a tree does not follow an earlier one.
    #[error("token {index} of the tree has parent {found}, expected -1..={max}", max = *index as i64 - 1)]
    TreeParent {
        /// Place in the tree.
        index: usize,
        /// The parent that came.
        found: i64,
    },
    /// A tree does not have one parent for each token.
    #[error("`parents` has {found} entries, expected [num_tokens={num_tokens}]")]
    TreeParents {
        /// Entries that came.
        found: usize,
        /// Tokens that came with them.
        num_tokens: usize,
    },
    /// The tokens to keep of a tree are not one path from its beginning.
    #[error("entry {index} of the path is {found}, expected {expected}")]
    TreePath {
        /// Place in the path.
        index: usize,
        /// The token that came.
        found: usize,
        /// What it must be.
        expected: &'static str,
    },
    /// A draft tree came under the rejection rule, which decides about chains.
    #[error("a draft tree came under `Acceptance::Rejection`, which decides about chains: use `Acceptance::Match`")]
    TreeRejection,
    /// The shape of a draft tree lies outside its range.
    #[error("`{name}` of a draft tree is {found}, expected {min}..={max}")]
    TreeShape {
        /// What is wrong.
        name: &'static str,
        /// Its value.
        found: usize,
        /// Smallest value.
        min: usize,
        /// Largest value.
        max: usize,
    },
    /// Hidden states that came with tokens are not one row for each.
    #[error("`hidden` has {found} elements, expected [num_tokens={num_tokens}, hidden_size={hidden_size}]")]
    HiddenRows {
        /// Elements that came.
        found: usize,
        /// Tokens that came with them.
        num_tokens: usize,
        /// Elements of a row.
        hidden_size: usize,
    },
    /// An option of a generation lies outside its range.
    #[error("option `{option}` is {found}, expected {min}..={max}")]
    Options {
        /// The option.
        option: &'static str,
        /// The value that came.
        found: usize,
        /// Smallest value.
        min: usize,
        /// Largest value.
        max: usize,
    },
}

/// What makes logits unusable.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LogitsProblem {
    /// There are none, or more than token ids can count.
    #[error("{len} of them, expected 1..=4294967295")]
    Count {
        /// How many came.
        len: usize,
    },
    /// One is NaN or plus infinity.
    #[error("the logit of token {id} is {value}, expected a finite number or -inf")]
    NotANumber {
        /// The first such token.
        id: usize,
        /// Its logit.
        value: f32,
    },
    /// All are minus infinity.
    #[error("every logit is -inf, expected at least one token that may be drawn")]
    AllMasked,
}

/// What makes a list of probabilities unusable.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DistributionProblem {
    /// Token ids are not strictly rising.
    #[error("token {id} comes after token {previous}, expected rising ids")]
    Order {
        /// The token out of order.
        id: u32,
        /// The one before it.
        previous: u32,
    },
    /// A probability is negative, NaN or infinite.
    #[error("token {id} has probability {value}, expected a number from 0 to 1")]
    Value {
        /// The token.
        id: u32,
        /// Its probability.
        value: f64,
    },
    /// Probabilities do not add up.
    #[error("the probabilities add up to {sum}, expected 1")]
    Sum {
        /// Their sum.
        sum: f64,
    },
    /// The drafter drafted a token that it says it never drafts.
    #[error("the draft {id} has probability 0, expected the drafter's own probability of its draft")]
    ImpossibleDraft {
        /// The draft.
        id: u32,
    },
}

fn nearest_hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!("; the nearest name is `{name}`"))
}

fn and_more(count: usize) -> String {
    if count > 1 { format!(" and {} more", count - 1) } else { String::new() }
}
