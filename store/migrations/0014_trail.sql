-- What agents decide is in the chain.
DROP TABLE autonomy_decisions;
