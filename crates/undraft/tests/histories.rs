//! 10,000 random operations on a pool against a plain list of states, bits compared after each.

mod common;

use std::path::PathBuf;

use common::{Model, bits};
use undraft::{
    Capture, DType, DecayShape, DetachedRound, Device, Error, GdnDims, GdnLayer, GdnLayerParams, LayerDims, PoolConfig,
    Slot, Snapshot, StateLayout, StatePool,
};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// One layer of Gated DeltaNet and one of KDA.
fn model() -> Model {
    let mut model = Model::new(&[(1, 2, 17, 5, 3)]);
    let dims = GdnDims::new(2, 2, 16, 8).unwrap().with_decay_shape(DecayShape::PerChannel);
    let weight = common::values(91, 4 * dims.conv_dim());
    let (a_log, dt_bias) = (common::values(92, 2), common::values(93, dims.decay_len()));
    let layer = GdnLayer::new(GdnLayerParams::new(dims, 4, &weight, &a_log, &dt_bias)).unwrap();
    model.layers.push((LayerDims { gdn: dims, conv_width: 4 }, layer));
    model
}

/// Recurrent and convolution state of each layer.
type State = Vec<(Vec<f32>, Vec<f32>)>;

fn read(pool: &mut StatePool, slot: Slot) -> State {
    (0..pool.num_layers())
        .map(|i| (pool.recurrent_state(i, slot).unwrap().to_f32(), pool.conv_state(i, slot).unwrap().to_vec()))
        .collect()
}

/// Decodes one token from plain states, in a pool of its own.
struct Decoder {
    pool: StatePool,
    slot: Slot,
}

impl Decoder {
    fn new(model: &Model, config: &PoolConfig) -> Self {
        let config = PoolConfig { num_slots: 1, capture: Capture::DeltaLog, ..config.clone() };
        let mut pool = StatePool::new(&Device::cpu(), PoolConfig { layers: model.layer_dims(), ..config }).unwrap();
        let slot = pool.alloc().unwrap();
        Self { pool, slot }
    }
    fn step(&mut self, model: &Model, state: &mut State, token: u64) {
        for (layer, (recurrent, conv)) in state.iter().enumerate() {
            self.pool.import_recurrent(layer, self.slot, StateLayout::ValueMajor, recurrent).unwrap();
            self.pool.import_conv(layer, self.slot, conv).unwrap();
        }
        let mut round = self.pool.begin_final(&[self.slot], &[1]).unwrap();
        model.verify(&mut round, &[token]);
        round.commit(&[1]).unwrap();
        *state = read(&mut self.pool, self.slot);
    }
}

/// The pool under test and what it must hold.
struct World {
    model: Model,
    pool: StatePool,
    decoder: Decoder,
    random: Random,
    slots: Vec<(Slot, State)>,
    saved: Vec<(PathBuf, State)>,
    kept_in_memory: Option<(Snapshot, State)>,
    detached: Option<(DetachedRound, usize, Vec<u64>)>,
    dir: tempfile::TempDir,
    next_token: u64,
}

const MAX_WINDOW: usize = 5;
const NUM_SLOTS: usize = 7;

impl World {
    fn new(seed: u64, capture: Capture, state_dtype: DType) -> Self {
        let model = model();
        let layers = model.layer_dims();
        let config = PoolConfig { capture, state_dtype, ..PoolConfig::new(layers, NUM_SLOTS, MAX_WINDOW) };
        let threads = 1 + (seed % 2) as usize;
        Self {
            decoder: Decoder::new(&model, &config),
            pool: StatePool::new(&common::device(threads), config).unwrap(),
            model,
            random: Random(seed),
            slots: Vec::new(),
            saved: Vec::new(),
            kept_in_memory: None,
            detached: None,
            dir: tempfile::tempdir().unwrap(),
            next_token: 1,
        }
    }

    fn tokens(&mut self, n: usize) -> Vec<u64> {
        self.next_token += n as u64;
        (self.next_token - n as u64..self.next_token).collect()
    }

    fn zero(&self) -> State {
        let sizes = |(dims, layer): &(LayerDims, GdnLayer)| {
            (vec![0.0; dims.gdn.state_len()], vec![0.0; layer.conv_dims().state_len()])
        };
        self.model.layers.iter().map(sizes).collect()
    }

    /// Decodes these tokens from a slot's state.
    fn keep(&mut self, at: usize, tokens: &[u64]) {
        for &token in tokens {
            self.decoder.step(&self.model, &mut self.slots[at].1, token);
        }
    }

    /// A slot that is not in a detached round.
    fn pick(&mut self) -> Option<usize> {
        let busy = self.detached.as_ref().map(|d| d.1);
        let idle: Vec<usize> = (0..self.slots.len()).filter(|&i| Some(i) != busy).collect();
        (!idle.is_empty()).then(|| idle[self.random.below(idle.len())])
    }

    fn alloc(&mut self) {
        match self.pool.alloc() {
            Ok(slot) => {
                let zero = self.zero();
                self.slots.push((slot, zero));
            }
            Err(error) => {
                assert_eq!(error, Error::NoFreeSlot { num_slots: NUM_SLOTS });
                assert_eq!(self.slots.len(), NUM_SLOTS);
            }
        }
    }

    fn free(&mut self) {
        let Some(at) = self.pick() else { return };
        if self.detached.is_some() {
            return; // indices of the list would move
        }
        let (slot, _) = self.slots.swap_remove(at);
        self.pool.free(slot).unwrap();
        assert_eq!(self.pool.snapshot(slot).err(), Some(Error::SlotFreed { slot }));
    }

    fn fork(&mut self) {
        let Some(at) = self.pick() else { return };
        match self.pool.fork(self.slots[at].0) {
            Ok(slot) => {
                let state = self.slots[at].1.clone();
                self.slots.push((slot, state));
            }
            Err(error) => assert_eq!(error, Error::NoFreeSlot { num_slots: NUM_SLOTS }),
        }
    }

    /// A window on each of some slots: chains or trees, verified whole, in part or not at all, and kept in part or dropped.
    fn round(&mut self) {
        let mut picked = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            if let Some(at) = self.pick().filter(|at| !picked.contains(at)) {
                picked.push(at);
            }
        }
        let ids: Vec<Slot> = picked.iter().map(|&at| self.slots[at].0).collect();
        let windows: Vec<usize> = picked.iter().map(|_| self.random.below(MAX_WINDOW + 1)).collect();
        let is_tree = self.random.below(2) == 0;
        let mut parents: Vec<Vec<i32>> = Vec::new();
        for &n in &windows {
            let random = &mut self.random;
            parents.push((0..n).map(|i| if is_tree { random.below(i + 1) as i32 - 1 } else { i as i32 - 1 }).collect());
        }
        let tokens: Vec<Vec<u64>> = windows.iter().map(|&n| self.tokens(n)).collect();
        let mut paths: Vec<Vec<usize>> = Vec::new();
        for parents in &parents {
            let mut path = Vec::new();
            let mut at = self.random.below(parents.len() + 1);
            while at > 0 {
                path.insert(0, at - 1);
                at = (parents[at - 1] + 1) as usize;
            }
            paths.push(path);
        }
        let part = self.random.below(6);
        let mut round = match is_tree {
            true => self.pool.begin_tree(&ids, &parents.iter().map(|p| &p[..]).collect::<Vec<_>>()).unwrap(),
            false => self.pool.begin(&ids, &windows).unwrap(),
        };
        match part {
            // Cancelled before, after the first and after the last layer.
            0 => drop(round),
            1 => {
                let first = Model { layers: self.model.layers[..1].to_vec() };
                first.verify(&mut round, &tokens.concat());
                if windows.iter().sum::<usize>() > 0 {
                    assert_eq!(round.commit(&vec![0; ids.len()]).err(), Some(Error::NotVerified { layer: 1 }));
                }
            }
            2 => {
                self.model.verify(&mut round, &tokens.concat());
                drop(round);
            }
            _ => {
                self.model.verify(&mut round, &tokens.concat());
                round.commit_path(&paths.iter().map(|p| &p[..]).collect::<Vec<_>>()).unwrap();
                for ((at, tokens), path) in picked.into_iter().zip(tokens).zip(paths) {
                    self.keep(at, &path.iter().map(|&i| tokens[i]).collect::<Vec<_>>());
                }
            }
        }
    }

    fn final_round(&mut self) {
        let Some(at) = self.pick() else { return };
        let n = self.random.below(9);
        let tokens = self.tokens(n);
        let mut round = self.pool.begin_final(&[self.slots[at].0], &[n]).unwrap();
        self.model.verify(&mut round, &tokens);
        round.commit(&[n]).unwrap();
        self.keep(at, &tokens);
    }

    /// Detaches a round, or takes up the one that is.
    fn detach(&mut self) {
        if let Some((round, at, tokens)) = self.detached.take() {
            match self.random.below(3) {
                0 => {
                    let slot = self.slots[at].0;
                    self.pool.reset(slot).unwrap();
                    self.slots[at].1 = self.zero();
                    assert_eq!(self.pool.resume(round).err(), Some(Error::ForeignRound));
                }
                1 => self.pool.resume(round).unwrap().rollback(),
                _ => {
                    let n = self.random.below(tokens.len() + 1);
                    self.pool.resume(round).unwrap().commit(&[n]).unwrap();
                    self.keep(at, &tokens[..n]);
                }
            }
            return;
        }
        let Some(at) = self.pick() else { return };
        let n = 1 + self.random.below(MAX_WINDOW);
        let tokens = self.tokens(n);
        let slot = self.slots[at].0;
        let mut round = self.pool.begin(&[slot], &[n]).unwrap();
        self.model.verify(&mut round, &tokens);
        match round.detach() {
            Ok(round) => {
                for refused in [self.pool.fork(slot).err(), self.pool.snapshot(slot).err(), self.pool.free(slot).err()]
                {
                    assert_eq!(refused, Some(Error::SlotBusy { slot }));
                }
                self.detached = Some((round, at, tokens));
            }
            Err(error) => assert_eq!(error, Error::CannotDetach { capture: Capture::PerToken }),
        }
    }

    fn save(&mut self) {
        let Some(at) = self.pick() else { return };
        let (slot, state) = self.slots[at].clone();
        if self.random.below(4) == 0 {
            self.kept_in_memory = Some((self.pool.snapshot(slot).unwrap(), state));
            return;
        }
        let path = self.dir.path().join(format!("{}.safetensors", self.random.below(4)));
        self.pool.save(slot, &path).unwrap();
        self.saved.retain(|(saved, _)| *saved != path);
        self.saved.push((path, state));
        // Interrupted: nothing can be put in place of a directory, and what it holds stays.
        let taken = self.dir.path().join("taken");
        std::fs::create_dir_all(taken.join("inside")).unwrap();
        assert!(matches!(self.pool.save(slot, &taken), Err(Error::File { action: "write", .. })));
        assert!(taken.join("inside").is_dir());
        let left: Vec<_> = std::fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().contains(".tmp")), "{left:?}");
    }

    fn load(&mut self) {
        if let Some((snapshot, state)) = &self.kept_in_memory
            && self.random.below(3) == 0
        {
            let (snapshot, state) = (snapshot.clone(), state.clone());
            let Some(at) = self.pick() else { return };
            self.pool.restore(self.slots[at].0, &snapshot).unwrap();
            self.slots[at].1 = state;
            return;
        }
        if self.saved.is_empty() {
            return;
        }
        let (path, state) = self.saved[self.random.below(self.saved.len())].clone();
        let num_free = self.pool.num_free_slots();
        if self.random.below(4) == 0 {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.truncate(self.random.below(bytes.len()));
            let cut = self.dir.path().join("cut");
            std::fs::write(&cut, bytes).unwrap();
            assert!(matches!(self.pool.load(&cut), Err(Error::NotASnapshot { .. })));
            assert_eq!(self.pool.num_free_slots(), num_free);
            return;
        }
        match self.pool.load(&path) {
            Ok(slot) => self.slots.push((slot, state)),
            Err(error) => assert_eq!((error, num_free), (Error::NoFreeSlot { num_slots: NUM_SLOTS }, 0)),
        }
    }

    fn operation(&mut self) -> &'static str {
        match self.random.below(22) {
            0..2 => (self.alloc(), "alloc").1,
            2 => (self.free(), "free").1,
            3..5 => (self.fork(), "fork").1,
            5..14 => (self.round(), "round").1,
            14..16 => (self.final_round(), "final round").1,
            16..19 => (self.detach(), "detach").1,
            19 => (self.save(), "save").1,
            20 => (self.load(), "load").1,
            _ => {
                if let Some(at) = self.pick() {
                    self.pool.settle(&[self.slots[at].0]).unwrap();
                }
                "settle"
            }
        }
    }

    /// Every slot's bits. Read from a fork, so that what is pending stays pending.
    fn check(&mut self, what: &str) {
        let busy = self.detached.as_ref().map(|d| d.1);
        let Ok(spare) = self.pool.alloc() else { return self.check_settled(what) };
        self.pool.free(spare).unwrap();
        for (at, (slot, state)) in self.slots.iter().enumerate() {
            if Some(at) == busy {
                continue;
            }
            let fork = self.pool.fork(*slot).unwrap();
            same(&read(&mut self.pool, fork), state, what);
            self.pool.free(fork).unwrap();
        }
    }

    /// Without a free slot for a fork.
    fn check_settled(&mut self, what: &str) {
        let busy = self.detached.as_ref().map(|d| d.1);
        for (at, (slot, state)) in self.slots.iter().enumerate() {
            if Some(at) != busy {
                same(&read(&mut self.pool, *slot), state, what);
            }
        }
    }
}

fn same(got: &State, expected: &State, what: &str) {
    for (layer, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(bits(&got.0), bits(&expected.0), "{what}: recurrent state of layer {layer}");
        assert_eq!(bits(&got.1), bits(&expected.1), "{what}: convolution state of layer {layer}");
    }
}

#[test]
fn ten_thousand_operations_leave_the_bits_of_decoding() {
    let worlds = [
        (1, Capture::DeltaLog, DType::F32, 4000),
        (2, Capture::DeltaLog, DType::F32, 2500),
        (3, Capture::DeltaLog, DType::Bf16, 1500),
        (4, Capture::DeltaLog, DType::F16, 1000),
        (5, Capture::PerToken, DType::F32, 600),
        (6, Capture::PerToken, DType::Bf16, 400),
    ];
    assert_eq!(worlds.iter().map(|w| w.3).sum::<usize>(), 10_000);
    for (seed, capture, dtype, count) in worlds {
        let mut world = World::new(seed, capture, dtype);
        let mut counts = std::collections::BTreeMap::new();
        for n in 0..count {
            let what = world.operation();
            *counts.entry(what).or_insert(0) += 1;
            world.check(&format!("seed {seed}, {capture:?}, {dtype:?}, operation {n}, {what}"));
        }
        assert_eq!(counts.len(), 9, "{counts:?}");
    }
}
