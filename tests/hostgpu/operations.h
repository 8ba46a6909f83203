// Operations of the device `hostgpu`: each is the CPU's, over the device's memory, where a CUDA device could execute it too.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <string>
#include <unordered_set>

#include "memory.h"

namespace hostgpu {

using c10::IValue;

// Of native_functions.yaml, by rules.py: operators without a kernel for CUDA; those whose tensors must all be on one device, also
// tensors without dimensions; and those that take indices, or a shape, from the host.
struct Rules {
  std::unordered_set<std::string> cpu_only, one_device, takes_host_tensors, other_libraries;
};

inline Rules& rules() {
  static auto* one = new Rules;
  return *one;
}

inline at::Generator& generator() {
  static auto* one = new at::Generator(at::detail::createCPUGenerator(0));
  return *one;
}

template <class Visit>
void each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const IValue& item : value.toListRef()) each_tensor(item, visit);
  }
}

template <class Change>
IValue changed(const IValue& value, Change change) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(change(tensor));
    return tensors;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const IValue& item : value.toListRef())
      tensors.push_back(item.isTensor() && item.toTensor().defined() ? std::optional(change(item.toTensor())) : std::nullopt);
    return tensors;
  }
  return value;
}

inline void check_matrix_types(const std::string& name, const at::Tensor& tensor) {
  static const std::unordered_set<std::string> products{"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addmv"};
  TORCH_CHECK(
      !products.count(name) || !at::isIntegralType(tensor.scalar_type(), true), "\"", name, "_cuda\" not implemented for '",
      tensor.scalar_type(), "'");
}

// The device of all arguments. Raises where CUDA would: a CPU tensor among them, or one of another device.
inline std::optional<c10::Device> common_device(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  auto full = toString(op.operator_name());
  auto name = op.operator_name().name;
  std::optional<c10::Device> device;
  for (const IValue& value : arguments) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.device().type() != TYPE) return;
      check_matrix_types(name, tensor);
      TORCH_CHECK(
          !device || *device == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
          *device, " and ", tensor.device(), "! (", full, ")");
      device = tensor.device();
    });
    if (value.isDevice() && value.toDevice().type() == TYPE && !device) device = value.toDevice();
  }
  if (rules().takes_host_tensors.count(name)) return device;
  bool strict = rules().one_device.count(full);
  for (const IValue& value : arguments)
    each_tensor(value, [&](const at::Tensor& tensor) {
      TORCH_CHECK(
          tensor.device().type() == TYPE || (tensor.dim() == 0 && !strict),
          "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ", tensor.device(),
          "! (", full, ")");
    });
  return device;
}

inline void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto full = toString(op.operator_name());
  auto name = op.operator_name().name;
  bool of_torch = name.rfind("aten::", 0) == 0 || rules().other_libraries.count(name);
  TORCH_CHECK_NOT_IMPLEMENTED(
      of_torch && !rules().cpu_only.count(full), "Could not run '", full,
      "' with arguments from the 'CUDA' backend: hostgpu has what CUDA has");
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  auto arguments = torch::jit::last(*stack, count).vec();
  auto device = common_device(op, arguments);
  if (!device) device = c10::Device(TYPE, static_cast<c10::DeviceIndex>(current_device));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Open open;
  for (size_t i = 0; i < count; i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool write = alias && alias->isWrite(), view = alias && !write;
    if (arguments[i].isDevice()) {
      arguments[i] = c10::Device(c10::DeviceType::CPU);
    } else if (schema.arguments()[i].type()->str() == "Generator?") {
      arguments[i] = generator();
    } else {
      arguments[i] = changed(arguments[i], [&](const at::Tensor& tensor) {
        if (tensor.device().type() != TYPE) return tensor;
        if (!view) access(tensor, write, full.c_str());
        return open.on_host(tensor);
      });
    }
  }
  torch::jit::drop(*stack, count);
  for (auto& argument : arguments) stack->push_back(argument);
  op.callBoxed(stack);
  open.follow_sizes();
  for (auto& result : torch::jit::last(*stack, schema.returns().size()).vec()) (void)result;
  const size_t first = stack->size() - schema.returns().size();
  for (size_t i = first; i < stack->size(); i++)
    (*stack)[i] = changed((*stack)[i], [&](const at::Tensor& tensor) {
      auto made = open.on_device(tensor, *device);
      if (!schema.returns()[i - first].alias_info()) access(made, true, full.c_str());
      return made;
    });
}

// ------------------------------------------------------------------ operations that are the device's own

inline c10::Device device_or_here(std::optional<at::Device> device) {
  auto index = device && device->has_index() ? device->index() : static_cast<c10::DeviceIndex>(current_device);
  return c10::Device(TYPE, index);
}

inline at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const int before = current_device;
  current_device = device_or_here(device).index();
  auto type = c10::scalarTypeToTypeMeta(dtype.value_or(at::get_default_dtype_as_scalartype()));
  auto bytes = at::detail::computeStorageNbytes(size, stride, type.itemsize());
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), static_cast<int64_t>(bytes), device_allocator().allocate(bytes), &device_allocator(), true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  current_device = before;
  return tensor;
}

inline at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
    std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  auto strides = c10::contiguous_strides(size);
  auto made = empty_strided(size, strides, dtype, layout, device, pin);
  if (format && *format != at::MemoryFormat::Contiguous && *format != at::MemoryFormat::Preserve)
    made.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return made;
}

inline void resize_storage(const c10::Storage& storage, size_t bytes) {
  const int before = current_device;
  current_device = storage.device().index();
  auto data = device_allocator().allocate(bytes);
  current_device = before;
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept) {
    Locked lock(mutex());
    auto open = [&](const void* address, int protection) {
      mprotect(const_cast<void*>(address), whole_pages(state().regions.at(address).bytes), protection);
    };
    open(storage.data(), PROT_READ);
    open(data.get(), PROT_READ | PROT_WRITE);
    std::memcpy(data.get(), storage.data(), kept);
    open(data.get(), PROT_NONE);
    open(storage.data(), PROT_NONE);
  }
  auto* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

inline const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> /*format*/) {
  auto* impl = self.unsafeGetTensorImpl();
  auto bytes = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  impl->set_sizes_contiguous(size);
  return self;
}

inline at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr && size.size())
    impl->set_sizes_contiguous(size);
  else
    impl->set_sizes_and_strides(size, stride);
  return self;
}

inline at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

inline at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

inline at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (source.numel() == 0) return target;
  auto on_device = [](const at::Tensor& tensor) { return tensor.device().type() == TYPE; };
  if (on_device(source)) access(source, false, "copy_");
  if (on_device(target)) access(target, true, "copy_");
  Open open;
  auto host_source = on_device(source) ? open.on_host(source) : source;
  if (on_device(target)) {
    if (!on_device(source)) stream_reads(stream_here(target.device().index()), source);
    open.on_host(target).copy_(host_source);
    return target;
  }
  auto stream = stream_here(source.device().index());
  if (non_blocking && is_pinned(target.const_data_ptr())) {
    auto values = host_source.to(target.scalar_type(), false, true);
    Locked lock(mutex());
    state().deferred.push_back({{stream, state().time}, target, std::move(values)});
    if (target.is_non_overlapping_and_dense()) std::memset(target.mutable_data_ptr(), 0xFF, target.nbytes());
    return target;
  }
  host_waits_for(stream);
  target.copy_(host_source);
  return target;
}

inline at::Scalar local_scalar(const at::Tensor& self) {
  access(self, false, "item");
  host_waits_for(stream_here(self.device().index()));
  Open open;
  return at::_local_scalar_dense(open.on_host(self));
}

inline int64_t plain_attention(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool, std::optional<double>,
    bool) {
  return 0;  // by matrices: the CPU's fused kernels are the CPU's
}

// A parameter that moves between host and device stays the same object, as with CUDA.
inline bool may_replace(const at::Tensor& self, const at::Tensor& other) {
  auto dense = [](const at::Tensor& tensor) { return tensor.layout() == at::kStrided; };
  return dense(self) && dense(other);
}

// CUDA counts integers, too.
inline at::Tensor histogram(const at::Tensor& self, int64_t bins, const at::Scalar& least, const at::Scalar& most) {
  if (!at::isIntegralType(self.scalar_type(), false)) {
    access(self, false, "histc");
    Open open;
    return open.on_device(at::histc(open.on_host(self), bins, least, most), self.device());
  }
  return histogram(self.to(at::kDouble), bins, least, most).to(self.scalar_type());
}

// PyTorch sends convolutions of a device that it does not know here.
template <class Compute>
auto convolved(std::initializer_list<at::Tensor> inputs, Compute compute) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Open open;
  std::vector<at::Tensor> host;
  auto device = inputs.begin()->device();
  for (const at::Tensor& tensor : inputs) {
    TORCH_CHECK(
        !tensor.defined() || tensor.device() == device,
        "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ", tensor.device(),
        "! (convolution)");
    if (tensor.defined()) access(tensor, false, "convolution");
    host.push_back(tensor.defined() ? open.on_host(tensor) : tensor);
  }
  auto made = compute(host);
  auto on_device = [&](at::Tensor& tensor) {
    if (!tensor.defined()) return;
    tensor = open.on_device(tensor, device);
    access(tensor, true, "convolution");
  };
  if constexpr (std::is_same_v<decltype(made), at::Tensor>)
    on_device(made);
  else
    std::apply([&](auto&... tensors) { (on_device(tensors), ...); }, made);
  return made;
}

inline at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  return convolved({input, weight, bias.value_or(at::Tensor())}, [&](const std::vector<at::Tensor>& host) {
    return at::convolution(host[0], host[1], host[2], stride, padding, dilation, transposed, output_padding, groups);
  });
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> needed) {
  const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
  return convolved({gradient, input, weight}, [&](const std::vector<at::Tensor>& host) {
    return at::convolution_backward(
        host[0], host[1], host[2], at::IntArrayRef(outputs), stride, padding, dilation, transposed, output_padding, groups, needed);
  });
}

// The caching allocator gives memory to another tensor of its own stream only: this device never reuses memory, and has nothing to do.
inline void record_stream(at::Tensor&, at::Stream) {}

}  // namespace hostgpu
