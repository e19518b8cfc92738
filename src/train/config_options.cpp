#include "llmc/train/train_config.h"

namespace llmc {
namespace {

std::vector<ConfigOption> make_options() {
  using C = TrainConfig;
  const ConfigRange from_zero{0, ConfigRange::kUnbounded};
  const ConfigRange from_one{1, ConfigRange::kUnbounded};
  const ConfigRange size{0, 1e7};
  const ConfigRange fraction{0, 1};
  const ConfigRange beta{0, 1, false, true};
  const ConfigRange weight{0, 1e6};
  const auto kFree = OnResume::kFree;
  const auto kAction = OnResume::kAction;
  // key, group, member, range, choices, unit, help, on resume
  // clang-format off
  return {
      {"model", "model", &C::model, {}, {}, "",
       "Preset that gives the sizes below: gpt2-124M, gpt2-350M, gpt2-774M, gpt2-1558M, or a GPT-3 "
       "size such as gpt3-125M. Sizes that are given as well override the preset's."},
      {"n_layer", "model", &C::n_layer, {0, 4096}, {}, "blocks", "Depth. 0: from `model`."},
      {"n_head", "model", &C::n_head, size, {}, "heads",
       "Attention heads; must divide `n_embd`. 0: from `model`."},
      {"n_embd", "model", &C::n_embd, size, {}, "channels", "Width. 0: from `model`."},
      {"block_size", "model", &C::block_size, size, {}, "tokens",
       "Longest sequence the model has positions for. 0: from `model`."},
      {"vocab_size", "model", &C::vocab_size, size, {}, "tokens",
       "0: from `tokenizer`, else from the training data's sidecar, else from `model`."},
      {"init_from", "model", &C::init_from, {}, {}, "",
       "Where weights come from: `scratch` (drawn from `seed`), a checkpoint or run folder, a "
       "Hugging Face GPT-2 folder, or an llm.c model file (.bin). Files also give the sizes."},
      {"seed", "model", &C::seed, {0, 4294967295.0}, {}, "",
       "Seed of the initial weights, the shuffle and the samples."},
      {"precision", "model", &C::precision, {}, {"fp32", "tf32", "bf16"}, "",
       "Type of parameters and activations. tf32: fp32 whose matrix products round their inputs to "
       "10 bits, on GPUs."},
      {"master_weights", "model", &C::master_weights, {}, {}, "",
       "With bf16, keep the exact weights in fp32 besides. false: updates are rounded into the bf16 "
       "weights stochastically, which saves 4 bytes a parameter."},
      {"recompute", "model", &C::recompute, {}, {"none", "gelu", "gelu+norm", "block"}, "",
       "What the backward pass computes again instead of keeping it: saves memory, costs time, "
       "changes no bits."},
      {"device", "model", &C::device, {}, {"auto", "cpu", "cuda"}, "",
       "Where to compute; must be what the build offers. auto: that. A GPU is chosen by "
       "CUDA_VISIBLE_DEVICES; several processes on a machine take one each.", kFree},
      {"threads", "model", &C::threads, {0, 1024}, {}, "threads",
       "Compute threads of a process; results do not depend on it. 0: OMP_NUM_THREADS if set, else "
       "the processors this process may use; where several processes share them, its part.", kFree},
      {"isa", "model", &C::isa, {}, {"auto", "portable", "avx2", "avx512"}, "",
       "Instruction set of the CPU kernels. auto: the best this processor has."},
      {"attention", "model", &C::attention, {}, {"auto", "own", "cudnn"}, "",
       "GPU: whose attention kernels. auto: in each pass llmc's own where they are the fastest for "
       "this GPU, type and head size, else cuDNN's where the build has it and it takes the case."},
      {"tune_matmul", "model", &C::tune_matmul, {}, {}, "",
       "GPU: time several algorithms of each matrix product when it first occurs, and remember the "
       "fastest. false: take the vendor library's choice."},

      {"train_data", "data", &C::train_data, {}, {}, "",
       "Token files to train on, as a glob pattern."},
      {"val_data", "data", &C::val_data, {}, {}, "",
       "Token files to validate on, as a glob pattern. Empty: no validation."},
      {"tokenizer", "data", &C::tokenizer, {}, {}, "",
       "`byte`, or a tokenizer's folder or file; copied into the run. Empty: the one that `prepare` "
       "left beside the training data; where it left none, samples are printed as token ids."},
      {"shuffle", "data", &C::shuffle, {}, {}, "",
       "Visit sequences in an order drawn from `seed` and the epoch. false: in file order."},

      {"micro_batch", "step", &C::micro_batch, {1, 1e6}, {}, "sequences",
       "Sequences in one forward and backward pass of a process. On resume it may change if `tokens_per_step` "
       "stays.", kFree},
      {"seq_len", "step", &C::seq_len, size, {}, "tokens",
       "Length of a training sequence. 0: `block_size`."},
      {"tokens_per_step", "step", &C::tokens_per_step, from_zero, {}, "tokens",
       "Tokens of one update over all processes; gradients of several micro-batches are added up to "
       "reach it. 0: one micro-batch of each process."},
      {"max_steps", "step", &C::max_steps, from_zero, {}, "steps",
       "Length of the run. 0: as long as `epochs` says.", kFree},
      {"epochs", "step", &C::epochs, from_one, {}, "passes",
       "Passes over the training data; used when `max_steps` is 0.", kFree},

      {"zero_stage", "ranks", &C::zero_stage, {0, 1}, {}, "",
       "What several processes divide. 1 (ZeRO-1): each holds and updates a slice of the optimizer's "
       "state. 0: each holds and updates all of it. The results are the same.", kFree},
      {"reduce_dtype", "ranks", &C::reduce_dtype, {}, {"fp32", "bf16"}, "",
       "What gradients are rounded to on their way between processes; they are added up in fp32, but "
       "NCCL rounds its partial sums too. bf16 halves what is sent."},

      {"lr", "optimizer", &C::lr, {0, 100}, {}, "", "Peak learning rate."},
      {"final_lr_fraction", "optimizer", &C::final_lr_fraction, fraction, {}, "",
       "Learning rate at the end of the run, as a fraction of `lr`."},
      {"schedule", "optimizer", &C::schedule, {}, {"constant", "linear", "cosine", "wsd"}, "",
       "Course of the learning rate after the warm-up. wsd: constant, then a decay at the end."},
      {"warmup_steps", "optimizer", &C::warmup_steps, from_zero, {}, "steps",
       "Steps over which the learning rate rises to `lr`."},
      {"decay_fraction", "optimizer", &C::decay_fraction, fraction, {}, "",
       "Part of the run, at its end, over which the wsd schedule decays."},
      {"beta1", "optimizer", &C::beta1, beta, {}, "", "AdamW: decay of the first moment."},
      {"beta2", "optimizer", &C::beta2, beta, {}, "", "AdamW: decay of the second moment."},
      {"eps", "optimizer", &C::eps, {0, 1, true, false}, {}, "",
       "AdamW: added to the root of the second moment."},
      {"weight_decay", "optimizer", &C::weight_decay, weight, {}, "",
       "AdamW: decoupled decay of matrices and embeddings."},
      {"grad_clip", "optimizer", &C::grad_clip, weight, {}, "",
       "Largest global norm of the gradient; larger ones are scaled down. 0: no clipping."},
      {"skip_loss_z", "optimizer", &C::skip_loss_z, weight, {}, "standard deviations",
       "Skip an update whose loss lies this far above the recent mean. 0: never."},
      {"skip_grad_z", "optimizer", &C::skip_grad_z, weight, {}, "standard deviations",
       "The same for the gradient norm. 0: never."},
      {"max_bad_steps", "optimizer", &C::max_bad_steps, from_one, {}, "steps",
       "Updates skipped in a row that end the run."},

      {"comm_init", "start-up", &C::comm_init, {}, {"auto", "mpi", "tcp", "file"}, "",
       "How several processes find each other. tcp: all connect to rank 0 at `comm_address`. file: "
       "rank 0 says in `comm_file` where it listens. auto: by the address or file that is given, "
       "else as the launcher (mpirun, srun, torchrun) offers; without one, a single process.",
       kAction},
      {"comm_address", "start-up", &C::comm_address, {}, {}, "",
       "tcp: host or IP address of rank 0. Empty: the launcher's.", kAction},
      {"comm_port", "start-up", &C::comm_port, {0, 65535}, {}, "",
       "tcp: where rank 0 listens. 0: the launcher's, else 29417.", kAction},
      {"comm_rank", "start-up", &C::comm_rank, {-1, 1e6}, {}, "",
       "tcp, file: number of this process, from 0. -1: the launcher's.", kAction},
      {"comm_size", "start-up", &C::comm_size, {0, 1e6}, {}, "processes",
       "tcp, file: how many processes there are. 0: the launcher's.", kAction},
      {"comm_file", "start-up", &C::comm_file, {}, {}, "",
       "file: a path that all processes see; the file goes when they have met.", kAction},
      {"comm_token", "start-up", &C::comm_token, {}, {}, "",
       "tcp, file: a word that the processes of this run share; others are turned away. Empty: the "
       "environment variable LLMC_COMM_TOKEN, which nobody sees in a list of processes, else the "
       "launcher's name of the job.", kAction},
      {"comm_deadline", "start-up", &C::comm_deadline, {0, 1e6, true}, {}, "seconds",
       "How long to wait at the start for all processes.", kAction},
      {"comm_transport", "start-up", &C::comm_transport, {}, {"auto", "copy", "nccl"}, "",
       "How GPUs exchange. copy: they write into each other's memory, for which all must be in one "
       "machine. nccl: by NCCL. auto: copy where that is possible, else nccl.", kAction},

      {"out_dir", "run", &C::out_dir, {}, {}, "",
       "Folder of the run. Empty: runs/CONFIG-DATE-TIME.", kFree},
      {"log_every", "run", &C::log_every, from_zero, {}, "steps",
       "Interval of the step lines in the console and the logs.", kFree},
      {"val_every", "run", &C::val_every, from_zero, {}, "steps",
       "Interval of validation, which also happens before the first and after the last step.",
       kFree},
      {"val_tokens", "run", &C::val_tokens, from_zero, {}, "tokens",
       "Tokens of one validation, the first ones, up to the end of a sequence. 0: the whole data."},
      {"eval_choices", "run", &C::eval_choices, {}, {}, "",
       "Multiple-choice questions to ask the model at intervals, as `eval --choices` does: llm.c's "
       "binary file, or JSON Lines of ctx, endings and label, which need a tokenizer.", kFree},
      {"eval_choices_every", "run", &C::eval_choices_every, from_zero, {}, "steps",
       "Interval of these questions, which are also asked before the first and after the last step.",
       kFree},
      {"eval_choices_max", "run", &C::eval_choices_max, from_zero, {}, "examples",
       "Only the first ones of the file. 0: all.", kFree},
      {"sample_every", "run", &C::sample_every, from_zero, {}, "steps",
       "Interval of sampled text, which is also printed after the last step.", kFree},
      {"sample_tokens", "run", &C::sample_tokens, {1, 1e6}, {}, "tokens", "Length of a sample."},
      {"checkpoint_every", "run", &C::checkpoint_every, from_zero, {}, "steps",
       "Interval of checkpoints, one of which is also written after the last step. 0: none at all "
       "but the one that is always written when a signal ends the run.", kFree},
      {"keep_checkpoints", "run", &C::keep_checkpoints, from_zero, {}, "checkpoints",
       "Newest checkpoints to keep, besides the one with the lowest validation loss. 0: all."},
      {"resume", "run", &C::resume, {}, {}, "",
       "`auto` continues the newest checkpoint of `out_dir`, or starts if there is none; a "
       "checkpoint or run folder continues that one.", kAction},
      {"overwrite", "run", &C::overwrite, {}, {}, "",
       "Delete the run that `out_dir` holds and start anew.", kAction},
      {"dry_run", "run", &C::dry_run, {}, {}, "",
       "Print the memory plan, parameters and FLOPs per token, allocate nothing and stop.",
       kAction},
      {"dry_run_ranks", "run", &C::dry_run_ranks, {0, 1e6}, {}, "processes",
       "Plan a dry run as each of so many processes. 0: as those that were started.", kAction},
  };
  // clang-format on
}

}  // namespace

std::span<const ConfigOption> config_options() {
  static const std::vector<ConfigOption> options = make_options();
  return options;
}

}  // namespace llmc
