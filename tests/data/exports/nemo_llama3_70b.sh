#!/bin/bash
# Facts of NVIDIA-NeMo/NeMo v2.4.0, the recipe llama3_70b, as values on its own command line.
nemo llm pretrain --factory llama3_70b --yes \
    trainer.num_nodes=4 trainer.devices=8 \
    trainer.strategy.tensor_model_parallel_size=4 \
    trainer.strategy.pipeline_model_parallel_size=4 \
    trainer.strategy.virtual_pipeline_model_parallel_size=5 \
    trainer.strategy.context_parallel_size=2 \
    trainer.strategy.sequence_parallel=True \
    trainer.strategy.ddp.overlap_param_gather=True \
    optim.config.use_distributed_optimizer=True optim.config.lr=3e-4 \
    data.seq_length=8192 data.global_batch_size=512 data.micro_batch_size=1 \
    trainer.plugins.precision=bf16-mixed trainer.max_steps=1168251 log.log_dir=$LOGS
