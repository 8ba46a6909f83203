// The device `hostgpu`: registration with PyTorch, and its process group. See memory.h and operations.h.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/extension.h>

#include "operations.h"

namespace hostgpu {

// ------------------------------------------------------------------ guard: current device, streams, events

struct Event {
  Clock clock;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return TYPE;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return c10::Device(TYPE, static_cast<c10::DeviceIndex>(current_device));
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "hostgpu: invalid device ordinal ", device.index());
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  static int index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  static c10::Stream stream_of(int device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(TYPE, static_cast<c10::DeviceIndex>(device)), id);
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), current_stream[index_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    Locked lock(mutex());
    return stream_of(index_of(device), state().next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  static StreamKey key(const c10::Stream& stream) {
    return {stream.device_index(), stream.id()};
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    Locked lock(mutex());
    if (!*event) *event = new Event;
    static_cast<Event*>(*event)->clock = clock_of(key(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    Locked lock(mutex());
    if (event) merge(state().clocks[key(stream)], static_cast<Event*>(event)->clock);
  }
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return DEVICES;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    host_waits_for(key(stream));
  }
  void synchronizeEvent(void* event) const override {
    if (event) host_waits_for(static_cast<Event*>(event)->clock);
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    Clock all;
    {
      Locked lock(mutex());
      for (int64_t id = 0; id < state().next_stream; id++) all[{device, id}] = state().time;
    }
    host_waits_for(all);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return DEVICES;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Guard().setDevice(c10::Device(TYPE, device));
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice(c10::Device(TYPE, device)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  bool isPinnedPtr(const void* address) const override {
    return is_pinned(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }
  at::Device getDeviceFromPtr(void* address) const override {
    Locked lock(mutex());
    auto place = state().regions.find(address);
    TORCH_CHECK(place != state().regions.end(), "hostgpu: not an address of a tensor");
    return c10::Device(TYPE, static_cast<c10::DeviceIndex>(place->second.device));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("_fused_sdp_choice", &plain_attention);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &may_replace);
  m.impl("histc", &histogram);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

// ------------------------------------------------------------------ process group: gloo's, over the device's memory

using c10::intrusive_ptr;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;

struct Finished final : Work {
  explicit Finished(Tensors tensors) : result_(std::move(tensors)) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{result_.at(0).device()});
    future_->markCompleted(c10::IValue(result_));
  }
  bool isCompleted() override {
    return true;
  }
  bool isSuccess() const override {
    return true;
  }
  bool wait(std::chrono::milliseconds) override {
    return true;
  }
  Tensors result() override {
    return result_;
  }
  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  Tensors result_;
  intrusive_ptr<c10::ivalue::Future> future_;
};

// A message on its way: as with NCCL, only who waits for it waits for the receiver.
struct Sending final : Work {
  Sending(intrusive_ptr<Work> work, Tensors values) : work_(std::move(work)), values_(std::move(values)) {}
  bool isCompleted() override {
    return done_;
  }
  bool isSuccess() const override {
    return done_;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    if (!done_) work_->wait(timeout);
    return done_ = true;
  }
  intrusive_ptr<Work> work_;
  Tensors values_;
  bool done_ = false;
};

struct Group final : c10d::Backend {
  Group(int rank, int size, intrusive_ptr<Backend> gloo) : Backend(rank, size), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override {
    return "hostccl";
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return 0;
  }

  at::Tensor host(Open& open, const at::Tensor& tensor, bool write) {
    TORCH_CHECK(tensor.device().type() == TYPE, "No backend type associated with device type ", tensor.device().type());
    access(tensor, write, "a collective");
    return open.on_host(tensor);
  }
  Tensors host(Open& open, const Tensors& tensors, bool write) {
    Tensors all;
    for (auto& tensor : tensors) all.push_back(host(open, tensor, write));
    return all;
  }
  // gloo has no average
  static bool averages(c10d::ReduceOp& op) {
    bool average = op == c10d::ReduceOp::AVG;
    if (average) op = c10d::ReduceOp::SUM;
    return average;
  }

  intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Open open;
    auto all = host(open, tensors, true);
    gloo_->broadcast(all, options)->wait();
    return c10::make_intrusive<Finished>(tensors);
  }
  intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Open open;
    auto all = host(open, tensors, true);
    auto changed = options;
    bool average = averages(changed.reduceOp);
    gloo_->allreduce(all, changed)->wait();
    if (average)
      for (auto& tensor : all) tensor.div_(getSize());
    return c10::make_intrusive<Finished>(tensors);
  }
  intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    Open open;
    auto all = host(open, tensors, true);
    gloo_->reduce(all, options)->wait();
    return c10::make_intrusive<Finished>(tensors);
  }
  intrusive_ptr<Work> allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    Open open;
    std::vector<Tensors> all;
    for (auto& list : outputs) all.push_back(host(open, list, true));
    auto own = host(open, inputs, false);
    gloo_->allgather(all, own, options)->wait();
    return c10::make_intrusive<Finished>(outputs.at(0));
  }
  intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    Open open;
    auto own = host(open, input, false);
    auto all = host(open, output, true);
    auto parts = all.view(-1).chunk(getSize());
    std::vector<Tensors> lists{{}};
    for (auto& part : parts) lists[0].push_back(at::empty_like(own));
    Tensors inputs{own.clone()};
    gloo_->allgather(lists, inputs, options)->wait();
    for (int i = 0; i < getSize(); i++) parts[i].copy_(lists[0][i].view(-1));
    return c10::make_intrusive<Finished>(Tensors{output});
  }
  intrusive_ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    for (size_t i = 0; i < outputs.size(); i++) _allgather_base(outputs[i], inputs[i], options);
    return c10::make_intrusive<Finished>(outputs);
  }
  intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    for (auto& tensor : tensors) {
      Tensors one{tensor};
      allreduce(one, options);
    }
    return c10::make_intrusive<Finished>(tensors);
  }
  intrusive_ptr<Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    Open open;
    auto own = host(open, input, false);
    auto part = host(open, output, true);
    Tensors sums{own.clone().contiguous()};
    c10d::AllreduceOptions summing;
    summing.reduceOp = options.reduceOp;
    bool average = averages(summing.reduceOp);
    gloo_->allreduce(sums, summing)->wait();
    part.view(-1).copy_(sums[0].view(-1).chunk(getSize())[getRank()]);
    if (average) part.div_(getSize());
    return c10::make_intrusive<Finished>(Tensors{output});
  }
  intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    for (size_t i = 0; i < outputs.size(); i++) _reduce_scatter_base(outputs[i], inputs[i], options);
    return c10::make_intrusive<Finished>(outputs);
  }
  intrusive_ptr<Work> scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    Open open;
    auto own = host(open, outputs, true);
    std::vector<Tensors> all;
    for (auto& list : inputs) all.push_back(host(open, list, false));
    gloo_->scatter(own, all, options)->wait();
    return c10::make_intrusive<Finished>(outputs);
  }
  intrusive_ptr<Work> alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    Open open;
    auto sent = host(open, input, false);
    auto received = host(open, output, true);
    gloo_->alltoall_base(received, sent, output_sizes, input_sizes, options)->wait();
    return c10::make_intrusive<Finished>(Tensors{output});
  }
  intrusive_ptr<Work> send(Tensors& tensors, int target, int tag) override {
    Open open;
    Tensors values;
    for (auto& tensor : host(open, tensors, false)) values.push_back(tensor.clone());
    return c10::make_intrusive<Sending>(gloo_->send(values, target, tag), values);
  }
  intrusive_ptr<Work> recv(Tensors& tensors, int source, int tag) override {
    Open open;
    auto all = host(open, tensors, true);
    gloo_->recv(all, source, tag)->wait();
    return c10::make_intrusive<Finished>(tensors);
  }
  intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override {
    return gloo_->barrier(options);
  }

 private:
  intrusive_ptr<Backend> gloo_;
};

}  // namespace hostgpu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace hostgpu;
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(TYPE, &device_allocator());
  m.def("set_rules", [](const std::unordered_set<std::string>& cpu_only, const std::unordered_set<std::string>& one_device,
                        const std::unordered_set<std::string>& takes_host_tensors,
                        const std::unordered_set<std::string>& other_libraries) {
    rules() = Rules{cpu_only, one_device, takes_host_tensors, other_libraries};
  });
  m.def("device_count", [] { return DEVICES; });
  m.def("current_device", [] { return current_device; });
  m.def("set_device", [](int device) { Guard().setDevice(c10::Device(TYPE, static_cast<c10::DeviceIndex>(device))); });
  m.def("synchronize", [](int device) { Guard().synchronizeDevice(static_cast<c10::DeviceIndex>(device)); });
  m.def("memory_allocated", [](int device) { return state().allocated.at(device); });
  m.def("max_memory_allocated", [](int device) { return state().peak.at(device); });
  m.def("reset_peak", [](int device) { state().peak.at(device) = state().allocated.at(device); });
  m.def("host_waits", [] { return state().host_waits; });
  m.def("rng_state", [] { return generator().get_state(); });
  m.def("set_rng_state", [](const at::Tensor& values) { generator().set_state(values); });
  m.def("manual_seed", [](uint64_t seed) { generator().set_current_seed(seed); });
  m.def("group", [](int rank, int size, intrusive_ptr<c10d::Backend> gloo) -> intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<Group>(rank, size, std::move(gloo));
  });
}
