// A device of straw: host memory that torch takes for another device's.
//
// Every operation is done by the CPU's kernel on the same bytes, so a result is what the CPU says. What
// differs is what a GPU would forbid: a tensor of the host beside one of the device is refused.
//
// The device takes torch's key for devices made outside of it, PrivateUse1; Python names it.

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <set>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using c10::Device, c10::DeviceType, c10::DispatchKey, c10::DispatchKeySet, c10::IValue;

const Device STRAW(DeviceType::PrivateUse1, 0);

// They take indices of the host, as a GPU does; it copies them first.
const std::set<std::string> INDEXING = {
    "aten::_index_put_impl_", "aten::_unsafe_index", "aten::index", "aten::index_put", "aten::index_put_",
};

// ---- Memory ----

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t num_bytes) override {
    void* bytes = num_bytes ? c10::alloc_cpu(num_bytes) : nullptr;
    return {bytes, bytes, &c10::free_cpu, STRAW};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(DeviceType::PrivateUse1, &memory);

// The same bytes as a tensor of the other device. They live as long as either tensor does.
Tensor lent(const Tensor& owner, Device borrower) {
  auto* keep = new c10::Storage(owner.storage());
  auto give_up = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  c10::DataPtr data(keep->mutable_data(), keep, give_up, borrower);
  auto* allocator = c10::GetAllocator(borrower.type());
  // Resizable, for operations that give their `out` tensor its size.
  c10::Storage storage(c10::Storage::use_byte_size_t(), keep->nbytes(), std::move(data), allocator, true);
  auto key = borrower.is_cpu() ? DispatchKey::CPU : DispatchKey::PrivateUse1;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(key), owner.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      owner.sizes(), owner.strides(), owner.storage_offset());
  return tensor;
}

Tensor on_host(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu() ? lent(tensor, c10::kCPU) : tensor;
}

// ---- One stream, in order, that never lags behind ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  const c10::Stream now{c10::Stream::DEFAULT, STRAW};
  DeviceType type() const override { return STRAW.type(); }
  Device exchangeDevice(Device) const override { return STRAW; }
  Device getDevice() const override { return STRAW; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::Stream getStream(Device) const override { return now; }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- Every operation ----

void require_one_device(const std::string& name, c10::ArrayRef<IValue> arguments) {
  bool on_straw = false, on_cpu = false;
  auto see = [&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    on_straw |= !tensor.is_cpu();
    on_cpu |= tensor.is_cpu() && tensor.dim() > 0;  // a number may come from the host
  };
  for (const IValue& argument : arguments) {
    if (argument.isTensor()) {
      see(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const Tensor& tensor : argument.toTensorVector()) see(tensor);
    } else if (argument.isOptionalTensorList()) {
      for (const auto& index : argument.toOptionalTensorVector()) {
        if (index && !INDEXING.count(name)) see(*index);
      }
    }
  }
  TORCH_CHECK(!(on_straw && on_cpu),
      "Expected all tensors to be on the same device, but found at least two, straw and cpu, in ", name);
}

// Gives the CPU's kernel the same bytes, and its results back to the device.
void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const auto num_arguments = op.schema().arguments().size();
  auto arguments = torch::jit::last(*stack, num_arguments);
  require_one_device(name, arguments);

  std::vector<std::pair<Tensor, Tensor>> loans;  // the CPU's, ours
  auto borrow = [&](const Tensor& ours) {
    if (!ours.defined() || ours.is_cpu()) return ours;
    loans.emplace_back(on_host(ours), ours);
    return loans.back().first;
  };
  for (size_t i = stack->size() - num_arguments; i < stack->size(); i++) {
    IValue& argument = (*stack)[i];
    if (argument.isTensor()) {
      argument = borrow(argument.toTensor());
    } else if (argument.isTensorList()) {
      c10::List<Tensor> host;
      for (const Tensor& tensor : argument.toTensorVector()) host.push_back(borrow(tensor));
      argument = host;
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> host;
      for (const auto& tensor : argument.toOptionalTensorVector())
        host.push_back(tensor ? std::optional<Tensor>(borrow(*tensor)) : std::nullopt);
      argument = host;
    } else if (argument.isDevice()) {
      argument = Device(c10::kCPU);
    }
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);

  // An `out` tensor that had the wrong size was given new memory, which is ours to take over.
  for (auto& [theirs, ours] : loans) {
    if (theirs.sizes() == ours.sizes()) continue;
    at::native::resize_(ours, theirs.sizes());
    on_host(ours).copy_(theirs);
  }
  auto give_back = [&](const Tensor& theirs) {
    if (!theirs.defined()) return theirs;
    for (auto& [loan, ours] : loans)
      if (loan.is_same(theirs)) return ours;
    return lent(theirs, STRAW);
  };
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); i++) {
    IValue& result = (*stack)[i];
    if (result.isTensor()) {
      result = give_back(result.toTensor());
    } else if (result.isTensorList()) {
      c10::List<Tensor> ours;
      for (const Tensor& tensor : result.toTensorVector()) ours.push_back(give_back(tensor));
      result = ours;
    }
  }
}

// ---- What no kernel of the CPU can do for us: to make memory, to look at it otherwise, to cross over ----

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &memory, DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &memory, DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool /*non_blocking*/) {
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// The device's own storage may be set, and no other's: torch says so itself.
Tensor& set_storage(Tensor& self, at::Storage storage) {
  const auto num_elements = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {num_elements}, {1});
}

const Tensor& resize(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

}  // namespace
