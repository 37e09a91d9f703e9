//! Whole rounds of a generation allocate nothing once they are warm: drafting, verification, sampling, commit and what
//! the drafter is told.

mod runner;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use runner::{NEXT, ODD, TRAINED, device, load_on, random_tokens};
use undraft::cpu::Isa;
use undraft_model::Model;
use undraft_model::drafters::{Drafter, LookupDrafter, LookupFirst, LookupOptions, MtpDrafter, ScriptedDrafter};
use undraft_model::generate::{Acceptance, GenerateOptions, Observer, Quiet, RoundInfo, generate};
use undraft_model::model::{CacheConfig, HybridCache};
use undraft_model::sampling::SamplingParams;

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
struct Counting;

fn count() {
    if COUNTING.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WINDOW: usize = 4;
/// Rounds that may allocate: those before the first window of full length, and some more.
const WARM: usize = 4;

/// Counts allocations behind the warm rounds.
#[derive(Default)]
struct Watch {
    /// Whether a window had its full length.
    full: bool,
    rounds: usize,
    counted_rounds: usize,
}

impl Observer for Watch {
    fn round(&mut self, round: &RoundInfo<'_>, _cache: &mut HybridCache) -> ControlFlow<()> {
        self.full |= round.drafts.len() == WINDOW;
        self.rounds += usize::from(self.full);
        self.counted_rounds += usize::from(COUNTING.load(Ordering::Relaxed));
        COUNTING.store(self.rounds >= WARM, Ordering::Relaxed);
        ControlFlow::Continue(())
    }
}

fn check(model: &Model, prompt: &[u32], options: &GenerateOptions, drafter: &mut dyn Drafter, what: &str) {
    let mut cache = model.new_cache(CacheConfig { capacity: 400, max_window: WINDOW + 1 }).unwrap();
    let mut watch = Watch::default();
    COUNT.store(0, Ordering::Relaxed);
    let run = generate(model, &mut cache, prompt, options, Some(drafter), &mut watch);
    COUNTING.store(false, Ordering::Relaxed);
    let count = COUNT.load(Ordering::Relaxed);
    assert_eq!(run.unwrap().tokens.len(), options.max_tokens, "{what}");
    assert!(watch.counted_rounds > 12, "{what}: {} rounds counted", watch.counted_rounds);
    assert_eq!(count, 0, "{what}: allocations in {} warm rounds", watch.counted_rounds);
}

/// Windows that stay whole. How many tokens the next round replays is up to the drafts, and a back end keeps its memory
/// for them.
fn keep_whole_windows(model: &Model, prompt: &[u32]) {
    let mut cache = model.new_cache(CacheConfig { capacity: 400, max_window: WINDOW + 1 }).unwrap();
    let (sampling, acceptance) = (SamplingParams::default(), Acceptance::Match);
    let options = GenerateOptions { max_tokens: 40, sampling, acceptance, window: WINDOW, stop_tokens: Vec::new() };
    let plain = generate(model, &mut cache, prompt, &options, None, &mut Quiet).unwrap().tokens;
    let mut right = ScriptedDrafter::new(|known: &[u32], k| plain[known.len() - prompt.len()..][..k].to_vec());
    let run = generate(model, &mut cache, prompt, &options, Some(&mut right), &mut Quiet).unwrap();
    assert_eq!(run.accepted, run.drafted);
}

#[test]
fn warm_rounds_allocate_nothing() {
    let filtered = SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.9, seed: 1 };
    let samplings = [
        SamplingParams::default(),
        filtered.clone(),
        SamplingParams { top_k: 0, ..filtered.clone() },
        SamplingParams { top_k: 0, top_p: 1.0, ..filtered },
    ];
    for (path, num_threads) in [(TRAINED, 2), (NEXT, 1), (ODD, 1)] {
        let model = load_on(path, &device(Isa::best(), num_threads).unwrap());
        let prompt = random_tokens(&model, 3, 110).repeat(2);
        keep_whole_windows(&model, &prompt);
        let mut mtp = MtpDrafter::new(model.mtp().unwrap(), 400).unwrap();
        for acceptance in [Acceptance::Match, Acceptance::Rejection] {
            for sampling in &samplings {
                let (sampling, stop_tokens) = (sampling.clone(), Vec::new());
                let options = GenerateOptions { max_tokens: 90, sampling, acceptance, window: WINDOW, stop_tokens };
                let what = format!("{path}, {options:?}");
                check(&model, &prompt, &options, &mut mtp, &format!("MTP, {what}"));
                let mut lookup = LookupDrafter::new(LookupOptions::new(1, 3).unwrap());
                check(&model, &prompt, &options, &mut lookup, &format!("lookup, {what}"));
                let head = MtpDrafter::new(model.mtp().unwrap(), 400).unwrap();
                let mut both = LookupFirst::new(3, head).unwrap();
                check(&model, &prompt, &options, &mut both, &format!("lookup, then MTP, {what}"));
            }
        }
    }
}
