//! Wrong uses of a pool: the error's sentence, and nothing changed.

mod common;

use common::{Model, bits, device};
use undraft::{
    Device, Error, GdnDims, GdnLayer, GdnLayerParams, LayerInputs, PoolConfig, Rows, RowsMut, Slot, StatePool,
};

fn setup() -> (Model, StatePool, Slot, Slot) {
    let model = Model::new(&[(1, 2, 32, 16, 4), (1, 2, 32, 16, 4)]);
    let config = PoolConfig::new(model.layer_dims(), 3, 4);
    let mut pool = StatePool::new(&device(1), config).unwrap();
    let (a, b) = (pool.alloc().unwrap(), pool.alloc().unwrap());
    for (slot, token) in [(a, 5), (b, 9)] {
        let mut round = pool.begin(&[slot], &[2]).unwrap();
        model.verify(&mut round, &[token, token + 1]);
        round.commit(&[1]).unwrap();
    }
    (model, pool, a, b)
}

fn snapshot(pool: &mut StatePool, slots: &[Slot]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for &slot in slots {
        for layer in 0..pool.num_layers() {
            all.push(bits(&pool.recurrent_state(layer, slot).unwrap().to_f32()));
            all.push(bits(pool.conv_state(layer, slot).unwrap()));
        }
    }
    all
}

/// Runs `wrong` on a prepared pool; its error must read `sentence` and the slots must keep their bits.
fn refused(sentence: &str, wrong: impl Fn(&Model, &mut StatePool, Slot, Slot) -> Result<(), Error>) {
    let (model, mut pool, a, b) = setup();
    let mut reference = setup();
    let before = snapshot(&mut reference.1, &[reference.2, reference.3]);
    let error = wrong(&model, &mut pool, a, b).expect_err(sentence);
    let text = error.to_string().replace(&a.to_string(), "A").replace(&b.to_string(), "B");
    assert_eq!(text, sentence);
    assert_eq!(snapshot(&mut pool, &[a, b]), before, "{sentence}");
}

#[test]
fn wrong_slots_and_windows() {
    refused("slot A stands at [0] and again at [2]: a slot may stand once in a round", |_, p, a, b| {
        p.begin(&[a, b, a], &[1, 1, 1]).map(drop)
    });
    refused("window 1 has 5 tokens, expected at most `max_window` = 4", |_, p, a, b| {
        p.begin(&[a, b], &[4, 5]).map(drop)
    });
    refused("`windows` has 1 entries, expected 2, one a sequence", |_, p, a, b| p.begin(&[a, b], &[1]).map(drop));
    refused("all 3 slots are in use; free one, or make a larger pool", |_, p, _, _| {
        p.alloc().unwrap();
        p.alloc().map(drop)
    });
    refused("`layer` is 2, expected 0..2", |_, p, a, _| p.recurrent_state(2, a).map(drop));
    refused("slot PAD is not in use: it was freed, or belongs to another pool", |_, p, _, _| p.free(Slot::PAD));
}

#[test]
fn use_after_free_is_refused_also_when_the_place_is_given_out_again() {
    let (model, mut pool, a, b) = setup();
    pool.free(a).unwrap();
    let gone = Error::SlotFreed { slot: a };
    assert_eq!(pool.begin(&[a], &[1]).err(), Some(gone.clone()));
    let again = pool.alloc().unwrap();
    assert_ne!(again, a);
    for error in [
        pool.begin(&[b, a], &[1, 1]).err(),
        pool.begin_final(&[a], &[1]).err(),
        pool.fork(a).err(),
        pool.free(a).err(),
        pool.reset(a).err(),
        pool.settle(&[a]).err(),
        pool.recurrent_state(0, a).err(),
    ] {
        assert_eq!(error, Some(gone.clone()));
    }
    // A slot of another pool is no slot of this one.
    let (_, _, foreign, _) = setup();
    assert_eq!(pool.begin(&[foreign], &[1]).err(), Some(Error::SlotFreed { slot: foreign }));
    // What was given out again starts from zero.
    let mut round = pool.begin(&[again], &[1]).unwrap();
    model.verify(&mut round, &[1]);
    round.rollback();
    assert!(pool.recurrent_state(0, again).unwrap().to_f32().iter().all(|&x| x == 0.0));
}

#[test]
fn wrong_commits_roll_back() {
    refused("`num_kept`[1] is 3, expected 0..=2, the window's tokens", |m, p, a, b| {
        let mut round = p.begin(&[a, b], &[3, 2])?;
        m.verify(&mut round, &[1, 2, 3, 4, 5]);
        round.commit(&[3, 3])
    });
    refused("`num_kept` has 1 entries, expected 2, one a sequence", |m, p, a, b| {
        let mut round = p.begin(&[a, b], &[1, 1])?;
        m.verify(&mut round, &[1, 2]);
        round.commit(&[1])
    });
    let not_verified =
        "layer 1 was not verified in this round, so that it cannot be committed; the round is rolled back";
    refused(not_verified, |m, p, a, _| {
        let mut round = p.begin(&[a], &[1])?;
        let dims = m.layers[0].0.gdn;
        let (qkv, gate, mut out) = (vec![1.0; dims.conv_dim()], [0.5; 2], vec![0.0; dims.value_dim()]);
        let inputs =
            LayerInputs { layer: &m.layers[0].1, mixed_qkv: Rows::new(&qkv[..], dims.conv_dim()), a: &gate, b: &gate };
        round.verify(0, inputs, RowsMut::new(&mut out[..], dims.value_dim()))?;
        assert_eq!(
            round.verify(0, inputs, RowsMut::new(&mut out[..], dims.value_dim())).err(),
            Some(Error::VerifiedTwice { layer: 0 })
        );
        round.commit(&[1])
    });
}

#[test]
fn wrong_layer_inputs_leave_the_round_usable() {
    let (model, mut pool, a, b) = setup();
    let dims = model.layers[0].0.gdn;
    let other = GdnLayer::new(GdnLayerParams::new(
        GdnDims::new(1, 2, 32, 8).unwrap(),
        4,
        &vec![0.1; 4 * (64 + 16)],
        &[0.0; 2],
        &[0.0; 2],
    ))
    .unwrap();
    let (qkv, gate, mut out) = (vec![0.5; 2 * dims.conv_dim()], [0.5; 4], vec![7.0; 2 * dims.value_dim()]);
    let inputs =
        LayerInputs { layer: &model.layers[0].1, mixed_qkv: Rows::new(&qkv[..], dims.conv_dim()), a: &gate, b: &gate };
    let row = dims.value_dim();
    let mut round = pool.begin(&[a], &[2]).unwrap();
    let cases: [(LayerInputs<'_>, usize, &str); 5] = [
        (
            LayerInputs { a: &gate[..3], ..inputs },
            row,
            "`a` has 3 elements, expected 4 = [num_tokens=2, num_v_heads=2]",
        ),
        (LayerInputs { b: &[], ..inputs }, row, "`beta` has 0 elements, expected 4 = [num_tokens=2, num_v_heads=2]"),
        (
            LayerInputs { mixed_qkv: Rows::new(&qkv[..100], dims.conv_dim()), ..inputs },
            row,
            "`x` has 100 elements, expected at least 192 for 2 rows of 96 at stride 96",
        ),
        (
            LayerInputs { layer: &other, ..inputs },
            row,
            "layer 0 has `head_v_dim` = 8, expected 16 as the pool was made for",
        ),
        (inputs, row - 1, "`out` has row stride 31, expected at least the row length 32"),
    ];
    for (inputs, stride, sentence) in cases {
        let error = round.verify(0, inputs, RowsMut::new(&mut out[..], stride)).unwrap_err();
        assert_eq!(error.to_string(), sentence);
        assert!(out.iter().all(|&x| x == 7.0), "{sentence}");
    }
    assert_eq!(
        round.verify(9, inputs, RowsMut::new(&mut out[..], row)).unwrap_err().to_string(),
        "`layer` is 9, expected 0..2"
    );
    drop(round);
    let mut reference = setup();
    let before = snapshot(&mut reference.1, &[reference.2, reference.3]);
    assert_eq!(snapshot(&mut pool, &[a, b]), before);
}

#[test]
fn an_abandoned_prefill_tears_its_slot_until_it_is_reset() {
    let (model, mut pool, a, b) = setup();
    let round = pool.begin_final(&[a], &[3]).unwrap();
    drop(round); // before any layer ran: nothing happened
    pool.settle(&[a]).unwrap();
    let mut round = pool.begin_final(&[a, b], &[3, 0]).unwrap();
    model.verify(&mut round, &[1, 2, 3]);
    assert_eq!(round.commit(&[2, 0]), Err(Error::FinalKeepsAll { seq: 0, got: 2, num_tokens: 3 }));
    assert_eq!(pool.begin(&[a], &[1]).err(), Some(Error::SlotTorn { slot: a }));
    assert_eq!(pool.fork(a).err(), Some(Error::SlotTorn { slot: a }));
    pool.reset(a).unwrap();
    assert!(pool.recurrent_state(1, a).unwrap().to_f32().iter().all(|&x| x == 0.0));
    pool.free(b).unwrap();
}

#[test]
fn detached_rounds_of_other_pools_or_reset_slots_are_refused() {
    let (model, mut pool, a, _) = setup();
    let (_, mut other, _, _) = setup();
    let mut round = pool.begin(&[a], &[1]).unwrap();
    model.verify(&mut round, &[1]);
    let detached = round.detach().unwrap();
    assert_eq!(other.resume(detached).err(), Some(Error::ForeignRound));
    assert_eq!(pool.free(a).err(), Some(Error::SlotBusy { slot: a }));
    pool.reset(a).unwrap();
    let detached = pool.begin(&[a], &[1]).unwrap().detach().unwrap();
    pool.reset(a).unwrap();
    assert_eq!(pool.resume(detached).err(), Some(Error::ForeignRound));
}

#[test]
fn a_prompt_runs_beside_a_window() {
    let (model, mut pool, a, b) = setup();
    let tokens = [1, 2, 3, 4, 5];
    pool.reset(a).unwrap();
    pool.reset(b).unwrap();
    let mut prompt = pool.begin_final(&[a], &[5]).unwrap();
    model.verify(&mut prompt, &tokens);
    let prompt = prompt.detach().unwrap();
    let mut window = pool.begin(&[b], &[2]).unwrap();
    model.verify(&mut window, &tokens[..2]);
    window.commit(&[2]).unwrap();
    pool.resume(prompt).unwrap().commit(&[5]).unwrap();
    let mut rest = pool.begin_final(&[b], &[3]).unwrap();
    model.verify(&mut rest, &tokens[2..]);
    rest.commit(&[3]).unwrap();
    assert!(
        snapshot(&mut pool, &[a]) == snapshot(&mut pool, &[b]),
        "a prompt in one piece, and in a window and a rest"
    );

    // What its kernels have moved on cannot be taken back, also after it was detached.
    let mut prompt = pool.begin_final(&[a], &[5]).unwrap();
    model.verify(&mut prompt, &tokens);
    let prompt = prompt.detach().unwrap();
    pool.resume(prompt).unwrap().rollback();
    assert_eq!(pool.fork(a).err(), Some(Error::SlotTorn { slot: a }));
}

#[test]
fn absurd_sizes_are_errors() {
    let dims = GdnDims::new(1, 1, 256, 256).unwrap();
    let layers = vec![undraft::LayerDims { gdn: dims, conv_width: 4 }; 2];
    let config = PoolConfig::new(layers, 1 << 24, 1 << 16);
    let make = |change: fn(&mut PoolConfig)| {
        let mut config = config.clone();
        change(&mut config);
        StatePool::new(&Device::cpu(), config).unwrap_err().to_string()
    };
    assert!(make(|_| {}).ends_with("which the system refused"));
    assert_eq!(make(|c| c.num_slots = 0), "`num_slots` is 0, expected 1..=16777216");
    assert_eq!(make(|c| c.max_window = 0), "`max_window` is 0, expected 1..=65536");
    assert_eq!(make(|c| c.layers.clear()), "`num_layers` is 0, expected 1..=65536");
    let narrow = PoolConfig { num_slots: 1, max_window: 1, ..config.clone() };
    let bad = PoolConfig { layers: vec![undraft::LayerDims { gdn: dims, conv_width: 9 }], ..narrow };
    assert_eq!(StatePool::new(&Device::cpu(), bad).unwrap_err().to_string(), "`conv_width` is 9, expected 2..=8");
}
