// Memory, streams and order of the device `hostgpu` (see __init__.py).
//
// Memory lies in pages of the host that no code can read or write (PROT_NONE) except while an operation of the device has them open:
// a function for CPUs that gets a pointer of the device ends with a segmentation fault, as with a GPU's pointer. New memory is filled
// with 0xFF, which is NaN in every floating type.
//
// Order is that of streams: every operation is executed at once, but each access is checked against the last ones of other streams by
// vector clocks, as torch.cuda._sanitizer does. A copy to pinned host memory that does not block is done when somebody waits for it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hostgpu {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 4;
constexpr size_t PAGE = 4096;

// Held for the bookkeeping alone, never for an operation: a tensor that ends may need Python's lock, whose owner may want this one.
inline std::recursive_mutex& mutex() {
  static std::recursive_mutex one;
  return one;
}
using Locked = std::lock_guard<std::recursive_mutex>;

// ------------------------------------------------------------------ order

using StreamKey = std::pair<int, int64_t>;       // device, id
using Clock = std::map<StreamKey, int64_t>;      // by stream: the operation up to which it is known to be done

struct Access {
  StreamKey stream;
  int64_t time;
};

struct Region {
  size_t bytes;
  int device;
  int open = 0;                                  // operations that use it now
  bool written = false;
  Access write{};
  std::map<StreamKey, int64_t> reads;
};

struct Deferred {  // a copy to pinned memory that nobody has waited for
  Access access;
  at::Tensor target, values;
};

struct State {
  std::unordered_map<const void*, Region> regions;  // by address
  std::map<const void*, size_t> pinned;
  std::map<StreamKey, Clock> clocks;
  Clock host;
  std::vector<Deferred> deferred;
  int64_t time = 0, next_stream = 1, host_waits = 0;
  std::array<int64_t, DEVICES> allocated{}, peak{};
};

inline State& state() {
  static auto* one = new State;  // never destroyed: tensors may outlive static objects
  return *one;
}

inline thread_local int current_device = 0;
inline thread_local std::array<int64_t, DEVICES> current_stream{};  // 0: the default stream

inline StreamKey stream_here(int device) {
  return {device, current_stream[device]};
}

inline void merge(Clock& clock, const Clock& other) {
  for (auto& [stream, time] : other) clock[stream] = std::max(clock[stream], time);
}

inline bool known(const Clock& clock, const Access& access) {
  auto place = clock.find(access.stream);
  return place != clock.end() && place->second >= access.time;
}

inline bool ordered(const StreamKey& stream, const Access& access) {
  return access.stream == stream || known(state().clocks[stream], access) || known(state().host, access);
}

inline void touch(const void* address, bool write, const char* op) {
  Locked lock(mutex());
  auto place = state().regions.find(address);
  if (place == state().regions.end()) return;
  Region& region = place->second;
  auto stream = stream_here(region.device);
  auto check = [&](const Access& other, const char* kind) {
    TORCH_CHECK(
        ordered(stream, other), "hostgpu: ", op, " on stream ", stream.second, " of device ", stream.first, " ",
        write ? "writes" : "reads", " memory that stream ", other.stream.second, " ", kind,
        ", and waits neither for it nor for an event after it");
  };
  if (region.written) check(region.write, "has written");
  if (write)
    for (auto& [reader, time] : region.reads) check({reader, time}, "has read");
  Access here{stream, ++state().time};
  if (write) {
    region.written = true;
    region.write = here;
    region.reads.clear();
  } else {
    region.reads[stream] = here.time;
  }
}

// Every use of a tensor's values. Memory that was given back, as FSDP2 does with gathered parameters, has no values to read.
inline void access(const at::Tensor& tensor, bool write, const char* op) {
  if (tensor.numel() == 0) return;
  auto needed = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.dtype().itemsize(), static_cast<size_t>(tensor.storage_offset()));
  TORCH_CHECK(
      needed <= tensor.storage().nbytes(), "hostgpu: ", op, " uses ", needed, " bytes of a storage that has ",
      tensor.storage().nbytes(), ": its memory was freed");
  touch(tensor.storage().data(), write, op);
}

inline Clock clock_of(const StreamKey& stream) {
  Clock clock = state().clocks[stream];
  clock[stream] = state().time;
  return clock;
}

// Takes out of the list; the caller does them.
template <class Done>
std::vector<Deferred> taken_out(Done done) {
  auto& waiting = state().deferred;
  auto rest = std::stable_partition(waiting.begin(), waiting.end(), [&](const Deferred& one) { return !done(one); });
  std::vector<Deferred> out(std::make_move_iterator(rest), std::make_move_iterator(waiting.end()));
  waiting.erase(rest, waiting.end());
  return out;
}

inline void finish(std::vector<Deferred> copies) {
  for (auto& one : copies) one.target.copy_(one.values);
}

inline std::vector<Deferred> known_to_host(const Clock& clock) {
  Locked lock(mutex());
  merge(state().host, clock);
  return taken_out([&](const Deferred& one) { return known(clock, one.access); });
}

inline void host_waits_for(const Clock& clock) {
  finish(known_to_host(clock));
}

inline void host_waits_for(const StreamKey& stream) {
  Clock clock;
  {
    Locked lock(mutex());
    state().host_waits++;
    clock = clock_of(stream);
  }
  host_waits_for(clock);
}

// A stream that copies from pinned memory sees what came before in its own order.
inline void stream_reads(const StreamKey& stream, const at::Tensor& pinned) {
  std::vector<Deferred> copies;
  {
    Locked lock(mutex());
    copies = taken_out([&](const Deferred& one) {
      return one.target.storage().data() == pinned.storage().data() && ordered(stream, one.access);
    });
  }
  finish(std::move(copies));
}

// ------------------------------------------------------------------ memory

inline size_t whole_pages(size_t bytes) {
  return (bytes + PAGE - 1) / PAGE * PAGE;
}

inline void release(void* address) {
  Locked lock(mutex());
  auto place = state().regions.find(address);
  if (place == state().regions.end()) return;
  state().allocated[place->second.device] -= static_cast<int64_t>(place->second.bytes);
  munmap(address, whole_pages(place->second.bytes));
  state().regions.erase(place);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device device(TYPE, static_cast<c10::DeviceIndex>(current_device));
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    Locked lock(mutex());
    void* address = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "hostgpu: out of memory for ", bytes, " bytes");
    std::memset(address, 0xFF, bytes);
    mprotect(address, whole_pages(bytes), PROT_NONE);
    state().regions[address] = Region{bytes, current_device};
    auto& allocated = state().allocated[current_device];
    allocated += static_cast<int64_t>(bytes);
    state().peak[current_device] = std::max(state().peak[current_device], allocated);
    return {address, address, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    TORCH_CHECK(false, "hostgpu: no copy without tensors");
  }
};

inline void unpin(void* address) {
  Locked lock(mutex());
  state().pinned.erase(address);
  free(address);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = nullptr;
    TORCH_CHECK(posix_memalign(&address, 64, std::max<size_t>(bytes, 64)) == 0, "hostgpu: out of pinned memory");
    Locked lock(mutex());
    state().pinned[address] = bytes;
    return {address, address, &unpin, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &unpin;
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }
};

inline DeviceAllocator& device_allocator() {
  static DeviceAllocator one;
  return one;
}

inline PinnedAllocator& pinned_allocator() {
  static PinnedAllocator one;
  return one;
}

inline bool is_pinned(const void* address) {
  Locked lock(mutex());
  auto next = state().pinned.upper_bound(address);
  if (next == state().pinned.begin()) return false;
  auto [start, bytes] = *std::prev(next);
  return address < static_cast<const char*>(start) + bytes;
}

// ------------------------------------------------------------------ the host's view of a tensor

// Host tensors over the memory of device tensors, for the time of one operation.
class Open {
 public:
  ~Open() {
    Locked lock(mutex());
    for (const void* address : opened_) {
      Region& region = state().regions.at(address);
      if (--region.open == 0) mprotect(const_cast<void*>(address), whole_pages(region.bytes), PROT_NONE);
    }
  }

  at::Tensor on_host(const at::Tensor& tensor) {
    auto same = tensors_.find(tensor.unsafeGetTensorImpl());
    if (same != tensors_.end()) return same->second.first;
    auto host = view_of(storage(tensor.storage()), tensor, c10::DispatchKey::CPU);
    tensors_.emplace(tensor.unsafeGetTensorImpl(), std::make_pair(host, tensor));
    return host;
  }

  // The device's tensor of an operation's result.
  at::Tensor on_device(const at::Tensor& result, c10::Device device) {
    for (auto& [_, pair] : tensors_)
      if (pair.first.unsafeGetTensorImpl() == result.unsafeGetTensorImpl()) return pair.second;
    auto place = originals_.find(result.storage().unsafeGetStorageImpl());
    if (place != originals_.end()) return view_of(place->second, result, c10::DispatchKey::PrivateUse1);
    auto made = at::empty_strided(result.sizes(), result.strides(), result.options().device(device).pinned_memory(false));
    if (made.numel()) on_host(made).copy_(result);
    return made;
  }

  // After an operation that may have given an output another size.
  void follow_sizes() {
    auto copy = tensors_;
    for (auto& [_, pair] : copy) {
      auto& [host, tensor] = pair;
      if (host.sizes() == tensor.sizes()) continue;
      tensor.resize_(host.sizes());
      Open().on_host(tensor).copy_(host);
    }
  }

 private:
  static at::Tensor view_of(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides());
    impl->set_storage_offset(like.storage_offset());
    return tensor;
  }

  c10::Storage storage(const c10::Storage& original) {
    auto same = storages_.find(original.unsafeGetStorageImpl());
    if (same != storages_.end()) return same->second;
    void* address = original.mutable_data();
    Locked lock(mutex());
    auto place = state().regions.find(address);
    if (place != state().regions.end()) {
      if (place->second.open++ == 0) mprotect(address, whole_pages(place->second.bytes), PROT_READ | PROT_WRITE);
      opened_.push_back(address);
      kept_.push_back(original);
    }
    c10::Storage host(
        c10::Storage::use_byte_size_t(), original.nbytes(),
        c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)), c10::GetAllocator(c10::DeviceType::CPU), true);
    storages_.emplace(original.unsafeGetStorageImpl(), host);
    originals_.emplace(host.unsafeGetStorageImpl(), original);
    return host;
  }

  std::unordered_map<c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> tensors_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_, originals_;
  std::vector<const void*> opened_;
  std::vector<c10::Storage> kept_;
};

}  // namespace hostgpu
