// What torch asks a device's runtime for before it makes a tensor there, answered for a CUDA that is
// not there: two devices, one stream each. Tensors on it must be fake.

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kCuda, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};

void put(const c10::impl::DeviceGuardImplInterface* guard) {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kCuda)].store(guard);
}

}  // namespace

extern "C" void install() {
  static Guard guard;
  put(&guard);
}

extern "C" void take_away() { put(nullptr); }
