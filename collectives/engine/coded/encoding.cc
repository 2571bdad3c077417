#include "collectives/engine/coded/encoding.h"

#include <utility>

#include "collectives/engine/call/running_call.h"

namespace tarpon {

bool can_be_coded(const CallArguments& arguments) {
  return arguments.type == DataType::float32 && arguments.count > 0 && !arguments.parts &&
         may_run_bounded(arguments);
}

bool is_coded(const CallArguments& arguments, EpochSetting epoch, std::uint32_t number) {
  return epoch.coded && can_be_coded(arguments) &&
         effective_mode(arguments, number) == Mode::bounded;
}

Encoding::Encoding(const Setting& setting, std::shared_ptr<PendingCall> call, const Start& start,
                   FloatBufferPool& buffers)
    : call_(std::move(call)), start_(start), work_(setting.piece_bytes) {
  const AllreduceArguments& arguments = call_->arguments;
  const auto most = static_cast<std::uint32_t>(setting.slot_bytes / sizeof(float));
  coding_ =
      std::make_unique<Coding>(codec::strided_layout(arguments.count, most, setting.world),
                               codec::sign_key(setting.seed, arguments.tag, start.number), buffers);
  work_.add(coding_->rows_bytes() - coding_->touched(), 1,
            [coding = coding_.get(), from = coding_->touched()](
                std::uint64_t first, std::uint64_t count) { coding->touch(from + first + count); });
  work_.add(coding_->layout().all_members(), coding_->block_bytes(),
            [coding = coding_.get(), input = static_cast<const float*>(arguments.input)](
                std::uint64_t first, std::uint64_t count) {
              coding->encode(input, {first, count});
            });
  clear_nonfinite();
}

void Encoding::piece_ended(Duration took) {
  work_.ended(took);
  clear_nonfinite();
}

/// Sets all rows to zero if an element is not finite: no rank may add up rows of such a block.
void Encoding::clear_nonfinite() {
  if (cleared_ || coding_->finite()) return;
  cleared_ = true;
  work_.clear();
  work_.add(coding_->layout().rows(), coding_->row_pitch_bytes(),
            [coding = coding_.get()](std::uint64_t first, std::uint64_t count) {
              coding->clear(first, count);
            });
}

}  // namespace tarpon
