// What torch asks of a CUDA device beside computing on it, answered without one: one device, one stream, no events.
// A torch without CUDA then dispatches, casts and differentiates fake tensors on "cuda" as one with CUDA does.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <optional>

namespace {

const c10::Device device(c10::DeviceType::CUDA, 0);
const c10::Stream stream(c10::Stream::DEFAULT, device);

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream; }
  c10::Stream getDefaultStream(c10::Device) const override { return stream; }
  c10::Stream exchangeStream(c10::Stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct Hooks final : public at::CUDAHooksInterface {
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

}  // namespace

// These two take the place of torch's own: this library is loaded before torch's.
namespace at::accelerator {
__attribute__((visibility("default"))) std::optional<c10::DeviceType> getAccelerator(bool) { return device.type(); }
}  // namespace at::accelerator

namespace at::detail {
__attribute__((visibility("default"))) const CUDAHooksInterface& getCUDAHooks() {
  static const Hooks hooks;
  return hooks;
}
}  // namespace at::detail
