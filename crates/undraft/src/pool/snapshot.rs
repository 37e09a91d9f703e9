//! A slot's states outside of the pool: in memory for prefix caches, in a safetensors file for later.

use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};
use undraft_core::{ConvDims, DType, Data, DecayShape, GdnDims, bf16, f16};

use super::states::{StateBuffer, zeros};
use super::{LayerDims, Slot, StatePool};
use crate::error::{Error, Result};

/// Metadata of a file: what it is, and the version of its layout.
const FORMAT: &str = "undraft-slot";
const VERSION: &str = "1";
/// The conventions of its tensors, in words; another text is another layout.
const RECURRENT_LAYOUT: &str = "[num_v_heads, head_v_dim, head_k_dim]";
const CONV_LAYOUT: &str = "[conv_width - 1, channels], oldest input first, channels q | k | v, before the convolution";

/// Recurrent and convolution states of one slot, all layers, settled. Belongs to no pool.
///
/// ```
/// # use undraft::{Device, GdnDims, LayerDims, PoolConfig, Snapshot, StatePool};
/// # let layers = vec![LayerDims { gdn: GdnDims::new(1, 1, 16, 16)?, conv_width: 4 }];
/// # let mut pool = StatePool::new(&Device::cpu(), PoolConfig::new(layers, 2, 4))?;
/// # let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
/// let slot = pool.alloc()?;
/// let prefix = pool.snapshot(slot)?; // after a prompt that many requests share
/// let another = pool.alloc()?;
/// pool.restore(another, &prefix)?;
///
/// prefix.save(&dir.path().join("prefix.safetensors"))?;
/// assert_eq!(Snapshot::load(&dir.path().join("prefix.safetensors"))?, prefix);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug)]
struct Layer {
    dims: LayerDims,
    /// `[HV, V, K]`.
    recurrent: StateBuffer,
    /// `[W - 1, C]`.
    conv: Vec<f32>,
}

impl PartialEq for Snapshot {
    /// The same layers, dtype and bits.
    fn eq(&self, other: &Self) -> bool {
        self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| {
                a.dims == b.dims
                    && bytes_of(a.recurrent.data(0..a.recurrent.len()))
                        == bytes_of(b.recurrent.data(0..b.recurrent.len()))
                    && bytes_of(Data::F32(&a.conv)) == bytes_of(Data::F32(&b.conv))
            })
    }
}

impl StatePool {
    /// Copies a slot's states out. Pending tokens are settled first, so that nothing is lost.
    ///
    /// # Errors
    /// A stale, busy or torn slot, or no memory.
    pub fn snapshot(&mut self, slot: Slot) -> Result<Snapshot> {
        self.settle(&[slot])?;
        let copy = |layer: &super::LayerStorage| {
            let dtype = layer.recurrent.dtype();
            let mut recurrent = StateBuffer::zeros("a snapshot", dtype, &[layer.dims.gdn.state_len()])?;
            let copied = recurrent.copy_from(0..recurrent.len(), &layer.recurrent, layer.recurrent_range(slot.index()));
            debug_assert!(copied, "made with the same dtype");
            let mut conv = zeros("a snapshot", 0.0, &[layer.conv.state_len()])?;
            let len = conv.len();
            conv.copy_from_slice(&layer.conv_state[slot.index() * len..][..len]);
            Ok(Layer { dims: layer.dims, recurrent, conv })
        };
        Ok(Snapshot { layers: self.layers.iter().map(copy).collect::<Result<_>>()? })
    }

    /// Overwrites a slot's states, and what is pending on it.
    ///
    /// # Errors
    /// A stale or busy slot, or a snapshot with other layers, sizes or dtype; the slot is then as it was.
    pub fn restore(&mut self, slot: Slot, snapshot: &Snapshot) -> Result<()> {
        match self.slots.check(slot) {
            Ok(()) | Err(Error::SlotTorn { .. }) => {}
            Err(error) => return Err(error),
        }
        if snapshot.layers.len() != self.layers.len() {
            return Err(Error::SnapshotLayers { got: snapshot.layers.len(), expected: self.layers.len() });
        }
        for (layer, (from, to)) in snapshot.layers.iter().zip(&self.layers).enumerate() {
            from.dims.check_same(layer, &to.dims)?;
            let (got, expected) = (from.recurrent.dtype(), to.recurrent.dtype());
            if got != expected {
                let (arg, of_arg) = ("snapshot.recurrent_state", "state_dtype");
                return Err(undraft_core::Error::DType { arg, got, of_arg, expected }.into());
            }
        }
        for (from, to) in snapshot.layers.iter().zip(&mut self.layers) {
            let copied =
                to.recurrent.copy_from(to.recurrent_range(slot.index()), &from.recurrent, 0..from.recurrent.len());
            debug_assert!(copied, "dtypes were compared");
            to.conv_mut(slot.index()).copy_from_slice(&from.conv);
            to.pending[slot.index()] = [0; 2];
        }
        self.slots.set_status(slot.index(), super::Status::Idle);
        Ok(())
    }

    /// Saves a slot: [`StatePool::snapshot`], then [`Snapshot::save`].
    ///
    /// # Errors
    /// As both.
    pub fn save(&mut self, slot: Slot, path: &Path) -> Result<()> {
        self.snapshot(slot)?.save(path)
    }

    /// Loads a saved slot into a free one.
    ///
    /// # Errors
    /// As [`Snapshot::load`] and [`StatePool::restore`], or [`Error::NoFreeSlot`]; no slot is taken then.
    pub fn load(&mut self, path: &Path) -> Result<Slot> {
        let snapshot = Snapshot::load(path)?;
        let slot = self.slots.alloc()?;
        match self.restore(slot, &snapshot) {
            Ok(()) => Ok(slot),
            Err(error) => {
                self.slots.free(slot);
                Err(error)
            }
        }
    }
}

/// A layer's sizes in the metadata.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LayerHeader {
    num_k_heads: usize,
    num_v_heads: usize,
    head_k_dim: usize,
    head_v_dim: usize,
    /// `per_head` or `per_channel`.
    decay: String,
    conv_width: usize,
}

impl LayerHeader {
    fn new(dims: &LayerDims) -> Self {
        let gdn = &dims.gdn;
        let decay = match gdn.decay_shape() {
            DecayShape::PerHead => "per_head",
            DecayShape::PerChannel => "per_channel",
        };
        Self {
            num_k_heads: gdn.num_k_heads(),
            num_v_heads: gdn.num_v_heads(),
            head_k_dim: gdn.head_k_dim(),
            head_v_dim: gdn.head_v_dim(),
            decay: decay.into(),
            conv_width: dims.conv_width,
        }
    }
    fn dims(&self) -> Result<LayerDims> {
        let decay_shape = match &*self.decay {
            "per_head" => DecayShape::PerHead,
            "per_channel" => DecayShape::PerChannel,
            other => return Err(foreign("layers.decay", other, "per_head or per_channel")),
        };
        let gdn = GdnDims::new(self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim)?;
        ConvDims::new(gdn.conv_dim(), self.conv_width)?;
        Ok(LayerDims { gdn: gdn.with_decay_shape(decay_shape), conv_width: self.conv_width })
    }
}

fn foreign(what: impl Into<String>, got: impl Into<String>, expected: impl Into<String>) -> Error {
    Error::NotASnapshot { what: what.into(), got: got.into(), expected: expected.into() }
}

impl Snapshot {
    /// Dtype of the recurrent states.
    pub fn state_dtype(&self) -> DType {
        self.layers.first().map_or(DType::F32, |layer| layer.recurrent.dtype())
    }
    /// Sizes of the layers.
    pub fn layers(&self) -> impl Iterator<Item = &LayerDims> {
        self.layers.iter().map(|layer| &layer.dims)
    }
    /// Recurrent state `[HV, V, K]` of a layer; `None` if there is no such layer.
    pub fn recurrent_state(&self, layer: usize) -> Option<Data<'_>> {
        self.layers.get(layer).map(|layer| layer.recurrent.data(0..layer.recurrent.len()))
    }
    /// Convolution state `[W - 1, C]` of a layer, oldest input first; `None` if there is no such layer.
    pub fn conv_state(&self, layer: usize) -> Option<&[f32]> {
        self.layers.get(layer).map(|layer| &layer.conv[..])
    }

    /// As the bytes of a safetensors file: tensors `layers.{i}.recurrent_state` and `layers.{i}.conv_state`, and in the
    /// metadata `format`, `version`, the layouts and every layer's sizes.
    ///
    /// # Errors
    /// [`Error::NotASnapshot`] if the format does not hold it.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let headers: Vec<LayerHeader> = self.layers.iter().map(|layer| LayerHeader::new(&layer.dims)).collect();
        let wrong =
            |what: &str, e: &dyn std::fmt::Display| foreign(what, e.to_string(), "a snapshot that can be written");
        let metadata = [
            ("format", FORMAT.to_owned()),
            ("version", VERSION.to_owned()),
            ("recurrent_layout", RECURRENT_LAYOUT.to_owned()),
            ("conv_layout", CONV_LAYOUT.to_owned()),
            ("layers", serde_json::to_string(&headers).map_err(|e| wrong("layers", &e))?),
        ];
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut parts = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let gdn = &layer.dims.gdn;
            let data = layer.recurrent.data(0..layer.recurrent.len());
            let shape = vec![gdn.num_v_heads(), gdn.head_v_dim(), gdn.head_k_dim()];
            parts.push((format!("layers.{i}.recurrent_state"), st_dtype(data.dtype()), shape, bytes_of(data)));
            let shape = vec![layer.dims.conv_width - 1, gdn.conv_dim()];
            parts.push((format!("layers.{i}.conv_state"), Dtype::F32, shape, bytes_of(Data::F32(&layer.conv))));
        }
        let mut views = Vec::new();
        for (name, dtype, shape, bytes) in &parts {
            let view = TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| wrong(name, &e))?;
            views.push((name.as_str(), view));
        }
        serialize(views, Some(metadata)).map_err(|e| wrong("file", &e))
    }

    /// Reads what [`Snapshot::to_bytes`] gave.
    ///
    /// # Errors
    /// [`Error::NotASnapshot`] for bytes that are cut short, damaged, of another kind or of a version that is not known.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |e: safetensors::SafeTensorError| foreign("file", e.to_string(), "a whole safetensors file");
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(bad)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let value = |key: &str| metadata.get(key).map_or("absent", String::as_str);
        for (key, expected) in [
            ("format", FORMAT),
            ("version", VERSION),
            ("recurrent_layout", RECURRENT_LAYOUT),
            ("conv_layout", CONV_LAYOUT),
        ] {
            if value(key) != expected {
                return Err(foreign(format!("metadata.{key}"), value(key), expected));
            }
        }
        let headers: Vec<LayerHeader> = serde_json::from_str(value("layers"))
            .map_err(|e| foreign("metadata.layers", e.to_string(), "the sizes of each layer as JSON"))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(bad)?;
        if tensors.len() != 2 * headers.len() {
            return Err(foreign("tensors", tensors.len().to_string(), format!("{}, two a layer", 2 * headers.len())));
        }
        let mut layers: Vec<Layer> = Vec::new();
        for (i, header) in headers.iter().enumerate() {
            let dims = header.dims()?;
            let gdn = &dims.gdn;
            let find = |part: &str, shape: &[usize]| {
                let name = format!("layers.{i}.{part}");
                let tensor = tensors.tensor(&name).map_err(|_| foreign(&name, "absent", "a tensor"))?;
                match tensor.shape() == shape {
                    true => Ok((name, tensor)),
                    false => Err(foreign(name, format!("{:?}", tensor.shape()), format!("{shape:?}"))),
                }
            };
            let (name, tensor) = find("recurrent_state", &[gdn.num_v_heads(), gdn.head_v_dim(), gdn.head_k_dim()])?;
            let recurrent = read_states(&name, &tensor)?;
            if let Some(first) = layers.first()
                && first.recurrent.dtype() != recurrent.dtype()
            {
                return Err(foreign(name, recurrent.dtype().name(), first.recurrent.dtype().name()));
            }
            let (name, tensor) = find("conv_state", &[dims.conv_width - 1, gdn.conv_dim()])?;
            if tensor.dtype() != Dtype::F32 {
                return Err(foreign(name, format!("{:?}", tensor.dtype()), "F32"));
            }
            layers.push(Layer { dims, recurrent, conv: f32s(tensor.data()) });
        }
        Ok(Self { layers })
    }

    /// Writes a safetensors file; see [`Snapshot::to_bytes`]. It is written beside its place under another name, brought
    /// to the disk and then renamed: an interrupted save leaves what was there before.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = self.to_bytes()?;
        let failed = |e: std::io::Error| Error::File { path: path.to_owned(), action: "write", message: e.to_string() };
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".undraft-").suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file; the process's mask takes its part.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let mut file = builder.tempfile_in(dir).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        file.persist(path).map_err(|e| failed(e.error))?;
        Ok(())
    }

    /// Reads a file of [`Snapshot::save`].
    ///
    /// # Errors
    /// [`Error::File`], or as [`Snapshot::from_bytes`].
    pub fn load(path: &Path) -> Result<Self> {
        let failed = |e: std::io::Error| Error::File { path: path.to_owned(), action: "read", message: e.to_string() };
        Self::from_bytes(&std::fs::read(path).map_err(failed)?)
    }
}

fn st_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
    }
}

/// Little-endian bytes.
fn bytes_of(data: Data<'_>) -> Vec<u8> {
    match data {
        Data::F32(d) => d.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::Bf16(d) => d.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::F16(d) => d.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

fn read_states(name: &str, tensor: &TensorView<'_>) -> Result<StateBuffer> {
    let (bytes, shape) = (tensor.data(), tensor.shape());
    let buffer = |dtype| StateBuffer::zeros("a snapshot", dtype, shape);
    Ok(match tensor.dtype() {
        Dtype::F32 => {
            let mut buffer = buffer(DType::F32)?;
            if let undraft_core::DataMut::F32(to) = buffer.all_mut() {
                to.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, &x)| *to = f32::from_le_bytes(x));
            }
            buffer
        }
        Dtype::BF16 => StateBuffer::Bf16(bytes.as_chunks().0.iter().map(|&x| bf16::from_le_bytes(x)).collect()),
        Dtype::F16 => StateBuffer::F16(bytes.as_chunks().0.iter().map(|&x| f16::from_le_bytes(x)).collect()),
        other => return Err(foreign(name, format!("{other:?}"), "F32, BF16 or F16")),
    })
}
