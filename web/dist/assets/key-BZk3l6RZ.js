import{ao as s,ap as c}from"./index-BTpKEgaH.js";const k=Symbol("NaN");function N(r,e,n){var o=new c(r);s(()=>{var a=e();a!==a&&(a=k),o.ensure(a,n)})}export{N as k};
