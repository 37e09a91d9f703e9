//! Decode, verify and drafting allocate nothing once they are warm.

mod runner;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use runner::{NEXT, ODD, TRAINED, argmax, device, load_on, random_tokens};
use undraft::cpu::Isa;
use undraft_model::Model;
use undraft_model::model::{CacheConfig, Forward, Logits};

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

/// Rounds of drafting, verification, commit and feeding; allocations of those behind the warm ones.
fn allocations(model: &Model) -> usize {
    let mtp = model.mtp().unwrap();
    let hidden_size = model.config().hidden_size;
    let prompt = random_tokens(model, 1, 20);
    let mut cache = model.new_cache(CacheConfig { capacity: 200, max_window: 8 }).unwrap();
    let mut pairs = mtp.new_cache(200).unwrap();
    let mut out = Forward::new();
    model.prefill(&mut cache, &prompt, Logits::Last, &mut out, &mut |_| Ok(())).unwrap();
    let mut next = argmax(out.logits());
    mtp.feed(&mut pairs, out.hidden(), &[&prompt[1..], &[next]].concat()).unwrap();
    let (mut drafts, mut window, mut truth) = (Vec::with_capacity(8), Vec::with_capacity(8), Vec::with_capacity(8));
    for round in 0..24 {
        // Eight warm rounds, the longest window first, keep all they can.
        if round == 8 {
            COUNT.store(0, Ordering::Relaxed);
            COUNTING.store(true, Ordering::Relaxed);
        }
        let num_drafts = 7 - round % 8;
        mtp.draft(&mut pairs, num_drafts, &mut |step| Ok(argmax(step.logits)), &mut drafts).unwrap();
        window.clear();
        window.push(next);
        window.extend_from_slice(&drafts);
        let undecided = model.verify(&mut cache, &window, &mut out).unwrap();
        let kept = if round < 8 { window.len() } else { 1 + round % window.len() };
        undecided.commit(kept).unwrap();
        next = argmax(out.token_logits(kept - 1).unwrap());
        truth.clear();
        truth.extend_from_slice(&window[1..kept]);
        truth.push(next);
        mtp.feed(&mut pairs, &out.hidden()[..kept * hidden_size], &truth).unwrap();
        model.decode(&mut cache, next, &mut out).unwrap();
        next = argmax(out.logits());
        mtp.feed(&mut pairs, out.hidden(), &[next]).unwrap();
    }
    COUNTING.store(false, Ordering::Relaxed);
    COUNT.load(Ordering::Relaxed)
}

#[test]
fn warm_rounds_allocate_nothing() {
    for path in [TRAINED, NEXT, ODD] {
        for num_threads in [1, 2] {
            let device = device(Isa::best(), num_threads).unwrap();
            assert_eq!(allocations(&load_on(path, &device)), 0, "{path}, {num_threads} threads");
        }
    }
}
